//! What somebody may have on a volume that is to become a part, so that nothing is overwritten that nobody has named.

/// Where something says what it is: its bytes, from that byte of the volume on.
const SIGNATURES: &[(&str, u64, &[u8])] = &[
    ("a label of ours", 24 << 10, b"TWLABEL\0"),
    ("a label of ours", (512 + 24) << 10, b"TWLABEL\0"),
    ("LUKS", 0, b"LUKS\xba\xbe"),
    ("an LVM physical volume", 512, b"LABELONE"),
    ("an LVM physical volume", 0, b"LABELONE"),
    ("xfs", 0, b"XFSB"),
    ("ext2, ext3 or ext4", 1080, b"\x53\xef"),
    ("btrfs", (64 << 10) + 64, b"_BHRfS_M"),
    ("f2fs", 1024, b"\x10\x20\xf5\xf2"),
    ("swap space", 4086, b"SWAPSPACE2"),
    ("Linux software RAID", 4096, b"\xfc\x4e\x2b\xa9"),
    ("Linux software RAID", 0, b"\xfc\x4e\x2b\xa9"),
    ("a qcow2 image", 0, b"QFI\xfb"),
    ("NTFS", 3, b"NTFS    "),
    ("an ISO 9660 image", (32 << 10) + 1, b"CD001"),
    // Last: file systems and others leave room for it.
    ("a GPT partition table", 512, b"EFI PART"),
    ("a GPT partition table", 4096, b"EFI PART"),
    ("a partition table or boot loader", 510, b"\x55\xaa"),
];

/// What begins with these bytes, which are those of a volume from its first on. Nothing only if all of them are zero.
pub fn what_is_there(begins: &[u8]) -> Option<&'static str> {
    let says = |&&(_, at, bytes): &&(&str, u64, &[u8])| {
        begins.get(at as usize..).is_some_and(|rest| rest.starts_with(bytes))
    };
    if let Some((what, ..)) = SIGNATURES.iter().find(says) {
        return Some(what);
    }
    begins.iter().any(|&byte| byte != 0).then_some("something that is not known here")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_known_by_its_place_and_only_zeroes_are_nothing() {
        let mut zero = vec![0; 1 << 20];
        assert_eq!(what_is_there(&zero), None);
        for &(what, at, bytes) in SIGNATURES {
            let mut begins = zero.clone();
            begins[at as usize..][..bytes.len()].copy_from_slice(bytes);
            assert_eq!(what_is_there(&begins), Some(what));
            begins.truncate(at as usize + bytes.len() - 1);
            assert_ne!(what_is_there(&begins), Some(what), "cut");
        }
        zero[99_999] = 1;
        assert_eq!(what_is_there(&zero), Some("something that is not known here"));
    }

    /// Our own are where labels are.
    #[test]
    fn labels_are_found_where_they_are_written() {
        let ours: Vec<_> = SIGNATURES.iter().filter(|(what, ..)| what.ends_with("ours")).collect();
        assert!(ours.iter().map(|(_, at, _)| *at).eq(crate::meta::LABEL_OFFSETS));
    }
}

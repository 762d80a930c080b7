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

/// What none of those says.
pub(super) const UNKNOWN: &str = "something that is not known here";

/// What begins with these bytes, which are those of a volume from its first on. Nothing only if all of them are zero.
pub fn what_is_there(begins: &[u8]) -> Option<&'static str> {
    let says = |&&(_, at, bytes): &&(&str, u64, &[u8])| {
        begins.get(at as usize..).is_some_and(|rest| rest.starts_with(bytes))
    };
    if let Some((what, ..)) = SIGNATURES.iter().find(says) {
        return Some(what);
    }
    begins.iter().any(|&byte| byte != 0).then_some(UNKNOWN)
}

/// What marks the end of a volume as somebody else's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndMark {
    /// Whose it is.
    pub what: &'static str,
    /// Where it begins, in bytes of the volume.
    pub offset: u64,
    /// Whose it is takes a disk for its own by that alone: not so the copy of a table, which is more often what was written to a volume.
    pub claims: bool,
}

/// Linux software RAID, in the byte order of nearly all that has it.
const MD_MAGIC: &[u8] = b"\xfc\x4e\x2b\xa9";
const GPT_MAGIC: &[u8] = b"EFI PART";

/// Where such marks stand on a volume of so many bytes: what is there, where, and its bytes.
fn end_marks(bytes: u64) -> [(&'static str, Option<u64>, &'static [u8]); 4] {
    const KIB: u64 = 1 << 10;
    // The last whole 64 KiB; and 8 KiB before the end, at a multiple of 4 KiB (md's `MD_NEW_SIZE_SECTORS`, and `super_1_load`).
    let md_0_9 = (bytes / (64 * KIB) * (64 * KIB)).checked_sub(64 * KIB);
    let md_1_0 = bytes.checked_sub(8 * KIB).map(|at| at / (4 * KIB) * (4 * KIB));
    [
        ("Linux software RAID (0.9)", md_0_9, MD_MAGIC),
        ("Linux software RAID (1.0)", md_1_0, MD_MAGIC),
        // In the last sector, of either size.
        ("the backup of a GPT partition table", bytes.checked_sub(512), GPT_MAGIC),
        ("the backup of a GPT partition table", bytes.checked_sub(4096), GPT_MAGIC),
    ]
}

/// Whose marks there are at the end of a volume of so many bytes, the last of which are these: somebody may have left his where another has his by now.
pub fn marks_at_end(bytes: u64, ends: &[u8]) -> Vec<EndMark> {
    let first = bytes - ends.len() as u64;
    let found = end_marks(bytes).into_iter().filter_map(|(what, offset, magic)| {
        let offset = offset?;
        let at = offset.checked_sub(first)?;
        let claims = magic == MD_MAGIC;
        ends[at as usize..].starts_with(magic).then_some(EndMark { what, offset, claims })
    });
    found.collect()
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

    /// By numbers that `mdadm` and `sgdisk` come to, whatever of the end is shown.
    #[test]
    fn marks_at_the_end_are_known_by_their_places() {
        const MIB: u64 = 1 << 20;
        let odd = 3 * MIB + 5 * 512;
        let places = [
            (2 * MIB, 0xfc, [2 * MIB - 65_536, 2 * MIB - 8192]),
            (odd, 0xfc, [3 * MIB - 65_536, 3 * MIB - 8192]),
            (3 * MIB + 40 * 512, 0xfc, [3 * MIB - 65_536, 3 * MIB + 12_288]),
            (2 * MIB, b'E', [2 * MIB - 512, 2 * MIB - 4096]),
            (odd, b'E', [odd - 512, odd - 4096]),
        ];
        for (bytes, first, offsets) in places {
            for (shown, offset) in
                [MIB, 128 << 10].into_iter().flat_map(|s| offsets.map(|at| (s, at)))
            {
                let mut ends = vec![0; shown as usize];
                assert_eq!(marks_at_end(bytes, &ends), []);
                let magic =
                    [MD_MAGIC, GPT_MAGIC].into_iter().find(|magic| magic[0] == first).unwrap();
                let at = (offset + shown - bytes) as usize;
                ends[at..][..magic.len()].copy_from_slice(magic);
                let marks = marks_at_end(bytes, &ends);
                let marks: Vec<_> =
                    marks.iter().map(|mark| (mark.offset, mark.what.contains("GPT"))).collect();
                assert_eq!(marks, [(offset, first == b'E')]);
                // One byte beside it is nothing.
                ends.rotate_right(1);
                assert_eq!(marks_at_end(bytes, &ends), []);
            }
        }
        // What is smaller than that has none.
        assert_eq!(marks_at_end(4096, &[0; 4096]), []);
    }

    /// Our own are where labels are.
    #[test]
    fn labels_are_found_where_they_are_written() {
        let ours: Vec<_> = SIGNATURES.iter().filter(|(what, ..)| what.ends_with("ours")).collect();
        assert!(ours.iter().map(|(_, at, _)| *at).eq(crate::meta::LABEL_OFFSETS));
    }
}

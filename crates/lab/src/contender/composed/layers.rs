//! Where the kernel's time goes of a program, and of the attachment below it: samples of perf, by the layer that the innermost
//! function of a known one belongs to.

use super::{strs, words};
use crate::error::Outcome;
use crate::figures::LayerFigures;
use crate::stand::{Files, Laboratory, is_installed};

/// Layers, as Figure 2.5 of the document has them, with how the names of their functions begin. The first that fits counts.
const LAYERS: [(&str, &[&str]); 6] = [
    (
        "network",
        &[
            "tcp_",
            "ip_",
            "dev_",
            "__dev_",
            "net_",
            "__net",
            "netif",
            "__netif",
            "napi",
            "veth",
            "br_",
            "skb_",
            "__skb",
            "packet_",
            "tpacket",
            "sock_",
            "__sys_send",
            "___sys_send",
            "__sys_recv",
            "___sys_recv",
            "tbf_",
            "qdisc",
            "udp_",
        ],
    ),
    (
        "block I/O",
        &[
            "blk_",
            "__blk",
            "bio_",
            "__bio",
            "submit_bio",
            "__submit_bio",
            "dd_",
            "elv_",
            "loop_",
            "lo_",
        ],
    ),
    ("FUSE", &["fuse_"]),
    (
        "buffer cache",
        &[
            "filemap_",
            "__filemap",
            "folio_",
            "__folio",
            "page_cache",
            "generic_perform_write",
            "generic_file_read",
            "block_write",
            "__block_",
            "truncate_",
            "invalidate_",
            "write_cache_pages",
            "writeback",
            "__writeback",
            "wb_",
            "balance_dirty",
            "mark_buffer",
            "__find_get_block",
            "__bread",
            "shrink_",
            "lru_",
            "read_pages",
            "copy_page",
            "workingset",
            "mem_cgroup",
            "__mem_cgroup",
            "try_to_free",
            "try_charge",
            "do_writepages",
        ],
    ),
    (
        "file system",
        &[
            "ext4",
            "__ext4",
            "jbd2",
            "__jbd2",
            "vfs_",
            "path_",
            "link_path",
            "lookup_",
            "do_unlink",
            "filename_",
            "dput",
            "d_",
            "__d_",
            "inode_",
            "__inode",
            "evict",
            "iput",
            "mb_",
            "__es_",
            "do_filp_open",
            "ksys_",
            "new_sync",
        ],
    ),
    ("system call", &["entry_SYSCALL", "do_syscall", "x64_sys", "__x64_sys", "syscall_"]),
];
/// Of which nothing is known.
const OTHER: &str = "other";
/// Samples a second: no divisor of the timer's rate.
const RATE: &str = "997";

/// The names, in the order in which they are shown.
pub fn names() -> impl Iterator<Item = &'static str> {
    LAYERS.iter().rev().map(|(name, _)| *name).chain([OTHER])
}

/// Two perfs around a command: one for it, one for the attachment.
pub struct Profile {
    files: Files,
    attachment: u32,
}

impl Profile {
    /// `None` where perf is not there, or not allowed.
    pub fn of(lab: &Laboratory, attachment: u32) -> Outcome<Option<Self>> {
        let files = Files::new(lab)?;
        let profile = Profile { files, attachment };
        if !is_installed("perf") {
            return Ok(None);
        }
        let argv = profile.around(&["true".to_owned()]);
        let is_allowed = lab.run(None, &strs(&argv), "").is_ok();
        Ok(is_allowed.then_some(profile))
    }

    /// The words of a command with perf around it.
    pub fn around(&self, command: &[String]) -> Vec<String> {
        let record = words!["perf", "record", "-q", "-e", "cpu-clock:k", "-g", "-F", RATE];
        let mut argv = record.clone();
        argv.extend(words!["-o", self.files.path("attachment"), "-p", self.attachment, "--"]);
        argv.extend(record);
        argv.extend(words!["-o", self.files.path("program"), "--"]);
        argv.extend(command.iter().cloned());
        argv
    }

    /// What was found, in percent of the program's samples: of both.
    pub fn layers(&self, lab: &Laboratory) -> Outcome<Vec<LayerFigures>> {
        let read = |name: &str| {
            let path = self.files.path(name);
            lab.run(None, &["perf", "script", "-i", &path, "-F", "ip,sym"], "")
        };
        Ok(shares(&read("program")?, &read("attachment")?))
    }
}

/// Of samples as perf tells them: functions from the innermost on, a line each, an empty line behind each sample.
fn shares(program: &str, attachment: &str) -> Vec<LayerFigures> {
    let count = |text: &str| -> Vec<f64> {
        let layers: Vec<&str> = text.split("\n\n").filter_map(sample).collect();
        names().map(|name| layers.iter().filter(|own| **own == name).count() as f64).collect()
    };
    let [program, attachment] = [count(program), count(attachment)];
    let all: f64 = program.iter().sum();
    if all == 0.0 {
        return Vec::new();
    }
    let share = |(name, (program, attachment)): (&str, (&f64, &f64))| LayerFigures {
        layer: name.into(),
        program: program / all * 100.0,
        attachment: attachment / all * 100.0,
    };
    names().zip(program.iter().zip(&attachment)).map(share).collect()
}

/// The layer of a sample; `None` if there is none.
fn sample(text: &str) -> Option<&'static str> {
    let mut functions = text.lines().filter_map(|line| line.split_whitespace().nth(1)).peekable();
    functions.peek()?;
    Some(functions.find_map(layer_of).unwrap_or(OTHER))
}

fn layer_of(function: &str) -> Option<&'static str> {
    let fits = |(_, begins): &&(&str, &[&str])| begins.iter().any(|b| function.starts_with(b));
    LAYERS.iter().find(fits).map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_innermost_known_function_tells_the_layer() {
        let program = "\tffffffff81 _raw_spin_lock\n\tffffffff82 ext4_create\n\tffffffff83 vfs_create\n\n\
                       \tffffffff81 __folio_batch_add\n\tffffffff82 ext4_da_write_begin\n\n\
                       \tffffffff81 clear_page\n\tffffffff82 asm_exc_page_fault\n\n\
                       \tffffffff81 entry_SYSCALL_64\n\n";
        let attachment = "\tffffffff81 packet_sendmsg\n\n\tffffffff81 fuse_dev_read\n";
        let found = shares(program, attachment);
        let of = |name: &str| {
            let layer = found.iter().find(|layer| layer.layer == name).unwrap();
            (layer.program, layer.attachment)
        };
        for name in ["file system", "buffer cache", "system call", OTHER] {
            assert_eq!(of(name), (25.0, 0.0), "{name}");
        }
        assert_eq!((of("network"), of("FUSE")), ((0.0, 25.0), (0.0, 25.0)));
        assert_eq!(shares("", attachment), []);
        assert_eq!(names().last(), Some(OTHER));
    }
}

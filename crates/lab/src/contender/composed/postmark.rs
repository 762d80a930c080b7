//! Postmark on ext4 over the document's storage nodes.

use super::file_system::FileSystem;
use super::nodes::MEMORY_MIB;
use crate::composed::{Nodes, Program, Speed};
use crate::contender::Contender;
use crate::error::{LabError, Outcome};
use crate::figures::Figures;
use crate::point::{Load, Wire};
use crate::stand::{Laboratory, is_installed};

/// MiB of the file system: 100,000 files of Postmark's sizes, and half as much again.
const FILE_SYSTEM_MIB: u32 = 1536;

/// A file system for it.
pub struct Postmark<'l>(FileSystem<'l>);

/// The document's memory, or a tenth of it for a tenth of the files.
fn memory_mib(program: Program) -> u32 {
    if program.is_whole() { MEMORY_MIB } else { MEMORY_MIB.div_ceil(10) }
}

impl<'l> Postmark<'l> {
    pub fn set_up(
        lab: &'l Laboratory<'l>,
        wire: Wire,
        stand: (Nodes, Speed),
        program: Program,
    ) -> Outcome<Self> {
        if !is_installed("postmark") {
            return Err(LabError::Failed("postmark is not installed".into()));
        }
        let mib = [FILE_SYSTEM_MIB, memory_mib(program)];
        Ok(Postmark(FileSystem::set_up(lab, wire, stand, mib)?))
    }
}

impl Contender for Postmark<'_> {
    fn measure(&mut self, load: &Load, _: f64) -> Outcome<Figures> {
        let Some(Program::Postmark { files, transactions }) = load.program else {
            return Err(LabError::Failed(format!("{load}: not a load of Postmark")));
        };
        // One of its own for each run, as in the document.
        let at = self.0.make()?;
        let commands = format!(
            "set location {at}\nset number {files}\nset transactions {transactions}\nrun\nquit\n"
        );
        let (mut figures, text) = self.0.run("postmark", &commands, f64::from(transactions))?;
        let (Some(read), Some(written)) = (bytes(&text, "read ("), bytes(&text, "written ("))
        else {
            let said = crate::stand::tail(&text);
            return Err(LabError::Failed(format!("Postmark is not understood: {said}")));
        };
        if let Some(program) = &mut figures.program {
            program.read_kb_per_s = read / 1e3 / program.seconds;
            program.write_kb_per_s = written / 1e3 / program.seconds;
            figures.mib_per_s = (read + written) / program.seconds / f64::from(1 << 20);
        }
        Ok(figures)
    }
}

/// Of a line such as `2.73 megabytes read (...)`; its units are powers of two.
fn bytes(text: &str, what: &str) -> Option<f64> {
    let wanted = format!("bytes {what}");
    let line = text.lines().find(|line| line.contains(&wanted))?;
    let mut words = line.split_whitespace();
    let count: f64 = words.next()?.parse().ok()?;
    let unit = match words.next()? {
        "bytes" => 0,
        "kilobytes" => 10,
        "megabytes" => 20,
        "gigabytes" => 30,
        _ => return None,
    };
    Some(count * f64::from(1_u32 << unit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_postmark_prints_is_understood() {
        let text = "pm>Creating files...Done\nFiles:\n\t53 read (53 per second)\n\nData:\n\
                    \t350.03 kilobytes read (350.03 kilobytes per second)\n\
                    \t2.50 megabytes written (633.60 kilobytes per second)\npm>\n";
        assert_eq!(bytes(text, "read ("), Some(350.03 * 1024.0));
        assert_eq!(bytes(text, "written ("), Some(2.5 * 1_048_576.0));
        assert_eq!(bytes("Error: cannot open", "read ("), None);
    }

    #[test]
    fn memory_is_to_the_files_as_in_the_document() {
        let of = |files| memory_mib(Program::Postmark { files, transactions: 1 });
        assert_eq!((of(100_000), of(50_000), of(5000)), (512, 512, 52));
    }
}

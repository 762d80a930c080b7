//! TPC-H in sqlite on ext4 over the document's storage nodes.

use std::fmt::Display;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tpchgen::csv::{
    CustomerCsv, LineItemCsv, NationCsv, OrderCsv, PartCsv, PartSuppCsv, RegionCsv, SupplierCsv,
};
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator,
    PartSuppGenerator, RegionGenerator, SupplierGenerator,
};

use super::file_system::FileSystem;
use super::strs;
use super::words;
use crate::composed::{Nodes, Program, Speed};
use crate::contender::Contender;
use crate::error::{LabError, Outcome, failed};
use crate::figures::Figures;
use crate::point::{Load, Wire};
use crate::stand::{Files, Laboratory, Process, is_installed};

/// Of the document's 10 GB.
const SCALE: f64 = 0.3;
/// MiB of the file system: the database with its indices, and half as much again.
const FILE_SYSTEM_MIB: u32 = 1024;
/// MiB of the program and of what is kept of the database: a twentieth of its size, as the document's 512 MB are.
const MEMORY_MIB: u32 = 32;
/// How long the database may take to be made.
const MAKING: Duration = Duration::from_secs(900);
/// Its name.
const DATABASE: &str = "tpch.db";

const SCHEMA: &str = include_str!("../../../data/tpch_schema.sql");
const INDICES: &str = include_str!("../../../data/tpch_indices.sql");
const QUERIES: &str = include_str!("../../../data/tpch.sql");

/// A file system with the database.
pub struct Tpch<'l>(FileSystem<'l>);

impl<'l> Tpch<'l> {
    pub fn set_up(lab: &'l Laboratory<'l>, wire: Wire, stand: (Nodes, Speed)) -> Outcome<Self> {
        if !is_installed("sqlite3") {
            return Err(LabError::Failed("sqlite3 is not installed".into()));
        }
        let database = lab.once(DATABASE, |path| make(lab, path))?;
        let mut system = FileSystem::set_up(lab, wire, stand, [FILE_SYSTEM_MIB, MEMORY_MIB])?;
        system.make()?;
        system.copy(&database, DATABASE)?;
        Ok(Tpch(system))
    }
}

impl Contender for Tpch<'_> {
    fn measure(&mut self, load: &Load, _: f64) -> Outcome<Figures> {
        let Some(Program::Query(number)) = load.program else {
            return Err(LabError::Failed(format!("{load}: not a query")));
        };
        let query = query(number)
            .ok_or_else(|| LabError::Failed(format!("there is no query {number} here")))?;
        // Nothing of the database is in memory when it begins.
        let at = self.0.mount_anew()?;
        self.0.forget(DATABASE)?;
        let command = format!("sqlite3 -readonly {at}/{DATABASE}");
        let (figures, text) = self.0.run(&command, query, 1.0)?;
        // The shell adds three lines of times: a query that found nothing was not asked of that database.
        if text.lines().filter(|line| !line.trim().is_empty()).count() < 4 {
            return Err(LabError::Failed(format!("query {number} found nothing")));
        }
        Ok(figures)
    }
}

/// The text of a query.
fn query(number: u8) -> Option<&'static str> {
    let mark = format!("-- q{number}\n");
    let (_, text) = QUERIES.split_once(&mark)?;
    Some(text.split("\n-- q").next().unwrap_or(text))
}

/// Makes the database of the tables that the generator makes.
fn make(lab: &Laboratory, path: &Path) -> Outcome {
    eprintln!("lab: making the tables of TPC-H at scale {SCALE}, once");
    let files = Files::new(lab)?;
    let mut script = SCHEMA.to_owned();
    script += ".mode csv\n";
    for (table, csv) in tables(&files)? {
        script += &format!(".import {csv} {table}\n");
    }
    script += INDICES;
    let script = files.text("load.sql", &script)?;
    let path = path.to_str().expect("our own path");
    let argv = words!["sqlite3", "-bail", path, format!(".read {script}")];
    Process::start(lab, None, &strs(&argv))?.finish(lab, MAKING).map(drop)
}

/// Writes all tables, and returns their names with the paths of their files.
fn tables(files: &Files) -> Outcome<Vec<(&'static str, String)>> {
    let mut all = Vec::new();
    macro_rules! table {
        ($name:literal, $generator:ident, $csv:ident) => {
            all.push((
                $name,
                rows(files, $name, $generator::new(SCALE, 1, 1).iter().map($csv::new))?,
            ))
        };
    }
    table!("region", RegionGenerator, RegionCsv);
    table!("nation", NationGenerator, NationCsv);
    table!("part", PartGenerator, PartCsv);
    table!("supplier", SupplierGenerator, SupplierCsv);
    table!("customer", CustomerGenerator, CustomerCsv);
    table!("partsupp", PartSuppGenerator, PartSuppCsv);
    table!("orders", OrderGenerator, OrderCsv);
    table!("lineitem", LineItemGenerator, LineItemCsv);
    Ok(all)
}

fn rows<R: Display>(files: &Files, name: &str, rows: impl Iterator<Item = R>) -> Outcome<String> {
    let path = files.path(&format!("{name}.csv"));
    let write = || -> std::io::Result<()> {
        let mut file = std::io::BufWriter::new(std::fs::File::create(PathBuf::from(&path))?);
        for row in rows {
            writeln!(file, "{row}")?;
        }
        file.flush()
    };
    write().map_err(failed(format!("cannot write {path}")))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_query_is_by_itself() {
        for number in [1, 3, 5, 6, 7, 8, 11, 12, 14, 19] {
            let text = query(number).unwrap();
            assert!(
                text.starts_with("select") && text.trim_end().ends_with(';'),
                "{number}: {text}"
            );
            assert_eq!(text.matches(';').count(), 1, "{number}: {text}");
        }
        assert_eq!((query(2), query(9)), (None, None));
        assert_ne!(query(1), query(19), "19 is not 1 and a 9");
    }

    #[test]
    fn tables_have_the_columns_of_the_schema() {
        let columns = |table: &str| {
            let (_, rest) = SCHEMA.split_once(&format!("create table {table} (")).unwrap();
            let text = rest.split(");").next().unwrap();
            text.matches(&format!("{}_", prefix(table))).count()
        };
        fn prefix(table: &str) -> &str {
            if table == "partsupp" { "ps" } else { &table[..1] }
        }
        // Keys of two columns name them again.
        for (table, header, again) in [
            ("region", RegionCsv::header(), 0),
            ("nation", NationCsv::header(), 0),
            ("part", PartCsv::header(), 0),
            ("supplier", SupplierCsv::header(), 0),
            ("customer", CustomerCsv::header(), 0),
            ("partsupp", PartSuppCsv::header(), 2),
            ("orders", OrderCsv::header(), 0),
            ("lineitem", LineItemCsv::header(), 2),
        ] {
            assert_eq!(columns(table), header.split(',').count() + again, "{table}");
        }
    }
}

//! What a volume is made of: [`VolumeShape`], as a description in TOML would say it.

use thinwire_modules::thin::THIN_MODULE;
use thinwire_modules::{Crypt, Integrity, Module, Options};

/// How disks are put together.
#[derive(Clone, Debug)]
pub enum VolumeShape {
    /// The disk of this number.
    Disk(usize),
    /// A module over others.
    Over(VolumeOver),
}

/// A module over its parts.
#[derive(Clone, Debug)]
pub struct VolumeOver {
    /// Which module.
    pub module: &'static Module,
    /// What it is told.
    pub options: Options,
    /// Its parts have labels: always if it keeps something there.
    pub has_labels: bool,
    /// In their order.
    pub parts: Vec<VolumeShape>,
    /// Snapshots of it are taken as one: all its parts are volumes of pools.
    pub is_cut: bool,
    /// Of a pool: how large the volume is that is used of it, in bytes.
    pub thin_bytes: u64,
}

/// The name of the volume of a pool.
pub const THIN_NAME: &str = "home";

impl VolumeShape {
    /// A module over parts.
    ///
    /// # Panics
    /// If there is no such module, or it takes another number of parts.
    pub fn over(module: &'static str, options: &[(&str, u64)], parts: Vec<VolumeShape>) -> Self {
        let module = Module::find(module).expect("there is such a module");
        module.check_count(parts.len()).expect("it takes so many");
        let mut told = Options::default();
        for (name, value) in options {
            told.set(module.option(name).expect("it has that option"), *value);
        }
        let has_labels = module.keeps.is_some();
        VolumeShape::Over(VolumeOver {
            module,
            options: told,
            has_labels,
            parts,
            is_cut: false,
            thin_bytes: 0,
        })
    }

    /// The same, whose parts have labels.
    pub fn labelled(mut self) -> Self {
        if let VolumeShape::Over(over) = &mut self {
            over.has_labels = true;
        }
        self
    }

    /// The same, of which snapshots are taken as one.
    pub fn cut_as_one(mut self) -> Self {
        if let VolumeShape::Over(over) = &mut self {
            over.is_cut = true;
        }
        self.labelled()
    }

    /// Snapshots of it are taken as one.
    pub fn is_cut(&self) -> bool {
        matches!(self, VolumeShape::Over(over) if over.is_cut)
    }

    /// A volume of so many bytes in a pool over these parts.
    pub fn thin(block: u64, data: VolumeShape, metadata: VolumeShape, bytes: u64) -> Self {
        let mut shape = Self::over(THIN_MODULE.name, &[("block", block)], vec![data, metadata]);
        if let VolumeShape::Over(over) = &mut shape {
            over.thin_bytes = bytes;
        }
        shape
    }

    /// The same, where this takes the place of one disk.
    pub fn replaced(self, disk: usize, with: &dyn Fn(VolumeShape) -> VolumeShape) -> Self {
        match self {
            VolumeShape::Disk(number) if number == disk => with(VolumeShape::Disk(number)),
            VolumeShape::Disk(number) => VolumeShape::Disk(number),
            VolumeShape::Over(mut over) => {
                over.parts = over.parts.into_iter().map(|part| part.replaced(disk, with)).collect();
                VolumeShape::Over(over)
            }
        }
    }

    /// The parts of the module, none of a disk.
    pub fn parts(&self) -> &[VolumeShape] {
        match self {
            VolumeShape::Disk(_) => &[],
            VolumeShape::Over(over) => &over.parts,
        }
    }

    /// The module on top.
    pub fn top(&self) -> Option<&'static Module> {
        match self {
            VolumeShape::Disk(_) => None,
            VolumeShape::Over(over) => Some(over.module),
        }
    }

    /// All of it, each above its parts.
    pub fn walk<'a>(&'a self, visit: &mut dyn FnMut(&'a VolumeShape)) {
        visit(self);
        self.parts().iter().for_each(|part| part.walk(visit));
    }

    /// Some of it is this module.
    pub fn has(&self, module: &str) -> bool {
        let mut found = false;
        self.walk(&mut |shape| found |= shape.top().is_some_and(|top| top.name == module));
        found
    }

    /// Disks below it, in the order in which it names them.
    pub fn disks(&self) -> Vec<usize> {
        let mut disks = Vec::new();
        self.walk(&mut |shape| {
            if let VolumeShape::Disk(disk) = shape {
                disks.push(*disk);
            }
        });
        disks
    }

    /// How many modules stand on one another, at most.
    pub fn levels(&self) -> u32 {
        let highest = self.parts().iter().map(VolumeShape::levels).max();
        highest.map_or(0, |levels| levels + 1)
    }
}

impl VolumeOver {
    /// It has a key.
    pub fn is_crypt(&self) -> bool {
        self.module.name == Crypt::NAME
    }

    /// What is written ends in memory, and goes down later.
    pub fn keeps_writes(&self) -> bool {
        let option = self.module.options.iter().find(|option| option.name == "write_back");
        option.is_some_and(|option| self.options.get(option).is_some())
    }

    /// It has sums.
    pub fn has_sums(&self) -> bool {
        self.module.name == Integrity::NAME
    }
}

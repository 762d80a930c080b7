//! What happened in a world, to compare runs and to read.

/// What happened, as a hash for comparing runs and as text for reading.
pub struct Trace {
    hash: u64,
    prints: bool,
}

impl Trace {
    /// Nothing has happened yet. `prints` writes what does to stderr.
    pub fn new(prints: bool) -> Self {
        Trace { hash: 0xcbf2_9ce4_8422_2325, prints }
    }

    /// A number that differs if anything went differently.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// Takes note of something.
    pub fn note(&mut self, now: u64, who: &str, what: &str, value: u64) {
        for word in [now, value] {
            self.hash = (self.hash ^ word).wrapping_mul(0x100_0000_01b3).rotate_left(5);
        }
        for byte in who.bytes().chain(what.bytes()) {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        if self.prints && !(what == "sent" && value == 0) {
            eprintln!("{:>12.6} {who:<10} {what} {}", now as f64 / 1e9, readable(what, value));
        }
    }
}

/// I/Os carry token, first sector and count in one number; completions token and error.
fn readable(what: &str, value: u64) -> String {
    match what {
        "reads" | "writes" | "flushes" | "discards" | "zeroes" | "asks" => {
            let (first, count) = (value >> 16 & 0xff_ffff, value & 0xffff);
            format!("#{} {first}+{count}", value >> 40)
        }
        "completed" if value & 0xff == 0 => format!("#{}", value >> 8),
        "completed" => format!("#{} with error {}", value >> 8, value & 0xff),
        _ => value.to_string(),
    }
}

//! `--fault loss=1%,dup=1%,reorder=1%,seed=N`: faults made on purpose, for tests.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::error::ParseError;
use crate::size::parse_duration;

/// Faults that the links of this process make, in both directions. All zero: none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FaultSpec {
    /// Share of frames lost, 0 to 1.
    pub loss: f64,
    /// Share of frames that arrive twice.
    pub dup: f64,
    /// Share of frames that arrive late, after others.
    pub reorder: f64,
    /// Share of frames with flipped bits.
    pub corrupt: f64,
    /// Every frame comes this much later.
    pub delay: Duration,
    /// Makes the faults reproducible.
    pub seed: u64,
}

impl FromStr for FaultSpec {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut spec = FaultSpec::default();
        for part in text.split(',') {
            let (key, value) = part.split_once('=').unwrap_or((part, ""));
            let bad = |why: &str| ParseError::new(part, why);
            match key {
                "loss" => spec.loss = share(part, value)?,
                "dup" => spec.dup = share(part, value)?,
                "reorder" => spec.reorder = share(part, value)?,
                "corrupt" => spec.corrupt = share(part, value)?,
                "delay" => spec.delay = parse_duration(value)?,
                "seed" => {
                    spec.seed = value.parse().map_err(|_| bad("the seed must be a number"))?;
                }
                _ => {
                    return Err(bad(
                        "unknown fault; known are loss, dup, reorder, corrupt (as 1%), delay (as 1ms) and seed",
                    ));
                }
            }
        }
        Ok(spec)
    }
}

/// `1%`, `0.5%` or `0.01`.
fn share(part: &str, value: &str) -> Result<f64, ParseError> {
    let (number, scale) = match value.strip_suffix('%') {
        Some(number) => (number, 0.01),
        None => (value, 1.0),
    };
    let share = number.parse::<f64>().ok().map(|n| n * scale);
    share
        .filter(|share| (0.0..=1.0).contains(share))
        .ok_or_else(|| ParseError::new(part, "give a share from 0% to 100%, as in 1%"))
}

impl fmt::Display for FaultSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "loss={}%,dup={}%,reorder={}%,corrupt={}%,seed={}",
            self.loss * 100.0,
            self.dup * 100.0,
            self.reorder * 100.0,
            self.corrupt * 100.0,
            self.seed
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults() {
        let spec: FaultSpec = "loss=1%,dup=0.5%,reorder=0.02,delay=1ms,seed=7".parse().unwrap();
        assert_eq!((spec.loss, spec.dup, spec.reorder, spec.seed), (0.01, 0.005, 0.02, 7));
        assert_eq!(spec.delay, Duration::from_millis(1));
        for (text, named) in [
            ("", "unknown fault"),
            ("loss", "`loss`"),
            ("loss=1%,flood=1%", "`flood=1%`"),
            ("loss=101%", "`loss=101%`"),
            ("loss=-1%", "`loss=-1%`"),
            ("dup=NaN", "`dup=NaN`"),
            ("seed=x", "`seed=x`"),
        ] {
            let error = text.parse::<FaultSpec>().unwrap_err().to_string();
            assert!(error.contains(named), "{text}: {error}");
        }
    }
}

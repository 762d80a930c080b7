//! Which faults, how often, from which seed; and the text form that `--fault` takes.

use std::fmt;
use std::str::FromStr;

use crate::sim::FaultRates;

/// What a [`super::FaultLink`] does. The default does nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FaultConfig {
    /// Probabilities of the faults, for each frame and each way.
    pub rates: FaultRates,
    /// Every frame is held back at least this long, in ns; default 0.
    pub delay_ns_min: u64,
    /// And at most this long, in ns; default 0. Differing delays reorder, too.
    pub delay_ns_max: u64,
    /// Where the random numbers start; default 0.
    pub seed: u64,
}

/// Why a text describes no faults.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "fault {part:?}: {why}; faults are written like \
     loss=1%,dup=1%,reorder=1%,corrupt=0.1%,delay=100us,seed=7 (delay=50us..200us for a range)"
)]
pub struct FaultError {
    part: String,
    why: String,
}

impl FromStr for FaultConfig {
    type Err = FaultError;

    fn from_str(text: &str) -> Result<Self, FaultError> {
        let mut config = FaultConfig::default();
        let mut seen: Vec<&str> = Vec::new();
        for part in text.split(',').map(str::trim) {
            let fail = |why: String| FaultError { part: part.into(), why };
            let (key, value) =
                part.split_once('=').ok_or_else(|| fail("no value is given (KEY=VALUE)".into()))?;
            if seen.contains(&key) {
                return Err(fail(format!("{key} is given twice")));
            }
            match key {
                "loss" => config.rates.loss = percent(value).map_err(fail)?,
                "dup" => config.rates.dup = percent(value).map_err(fail)?,
                "reorder" => config.rates.reorder = percent(value).map_err(fail)?,
                "corrupt" => config.rates.corrupt = percent(value).map_err(fail)?,
                "delay" => {
                    let (low, high) = value.split_once("..").unwrap_or((value, value));
                    config.delay_ns_min = duration_ns(low).map_err(fail)?;
                    config.delay_ns_max = duration_ns(high).map_err(fail)?;
                    if config.delay_ns_min > config.delay_ns_max {
                        return Err(fail("the range is upside down".into()));
                    }
                }
                "seed" => {
                    config.seed =
                        value.parse().map_err(|_| fail(format!("{value:?} is not a number")))?;
                }
                _ => {
                    return Err(fail(format!(
                        "unknown key {key:?} (known: loss, dup, reorder, corrupt, delay, seed)"
                    )));
                }
            }
            seen.push(key);
        }
        Ok(config)
    }
}

fn percent(value: &str) -> Result<f64, String> {
    let number = value.strip_suffix('%').and_then(|digits| digits.parse::<f64>().ok());
    match number {
        Some(percent) if (0.0..=100.0).contains(&percent) => Ok(percent / 100.0),
        _ => Err(format!("{value:?} is not a percentage from 0% to 100%")),
    }
}

/// Longest delay: more would look like a dead link.
const DELAY_NS_MAX: u64 = 10_000_000_000;

fn duration_ns(value: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 4] =
        [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];
    for (unit, ns) in UNITS {
        if let Some(number) = value.strip_suffix(unit).and_then(|digits| digits.parse::<f64>().ok())
        {
            let delay_ns = number * ns as f64;
            if (0.0..=DELAY_NS_MAX as f64).contains(&delay_ns) {
                return Ok(delay_ns as u64);
            }
        }
    }
    Err(format!("{value:?} is not a duration from 0us to 10s (units: ns, us, ms, s)"))
}

impl fmt::Display for FaultConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let FaultRates { loss, dup, reorder, corrupt } = self.rates;
        for (key, rate) in
            [("loss", loss), ("dup", dup), ("reorder", reorder), ("corrupt", corrupt)]
        {
            if rate > 0.0 {
                write!(f, "{key}={}%,", rate * 100.0)?;
            }
        }
        if self.delay_ns_max > 0 {
            write!(f, "delay={}ns..{}ns,", self.delay_ns_min, self.delay_ns_max)?;
        }
        write!(f, "seed={}", self.seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_form_is_understood() {
        let text = "loss=1%,dup=2.5%,reorder=0%,corrupt=0.1%,delay=50us..1.5ms,seed=7";
        let config: FaultConfig = text.parse().unwrap();
        let rates = FaultRates { loss: 0.01, dup: 0.025, reorder: 0.0, corrupt: 0.001 };
        let expected =
            FaultConfig { rates, delay_ns_min: 50_000, delay_ns_max: 1_500_000, seed: 7 };
        assert_eq!(config, expected);
        assert_eq!(config.to_string().parse(), Ok(config));
        let fixed: FaultConfig = "delay=3ms".parse().unwrap();
        assert_eq!((fixed.delay_ns_min, fixed.delay_ns_max), (3_000_000, 3_000_000));
    }

    #[test]
    fn errors_name_the_key_or_the_value() {
        for (text, named) in [
            ("lost=1%", "unknown key \"lost\""),
            ("loss=1%,", "no value"),
            ("loss", "no value"),
            ("loss=1", "\"1\""),
            ("loss=101%", "\"101%\""),
            ("loss=-1%", "\"-1%\""),
            ("loss=nan%", "\"nan%\""),
            ("loss=1%,loss=2%", "twice"),
            ("delay=5", "\"5\""),
            ("delay=11s", "\"11s\""),
            ("delay=2ms..1ms", "upside down"),
            ("seed=x", "\"x\""),
        ] {
            let error = text.parse::<FaultConfig>().unwrap_err().to_string();
            assert!(error.contains(named) && error.contains("loss=1%,dup"), "{error}");
        }
    }
}

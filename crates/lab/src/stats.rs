//! Medians and spreads of a few rounds.

use serde::{Deserialize, Serialize};

/// What the rounds of a point came to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Half of the rounds were lower, half higher.
    pub median: f64,
    /// The lowest.
    pub min: f64,
    /// The highest.
    pub max: f64,
    /// A quarter was lower (between two rounds: interpolated).
    pub q1: f64,
    /// A quarter was higher.
    pub q3: f64,
    /// How many rounds.
    pub rounds: usize,
}

impl Spread {
    /// `None` of nothing. Values that are no numbers are left out.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values.into_iter().filter(|v| v.is_finite()).collect();
        values.sort_by(f64::total_cmp);
        let (&min, &max) = (values.first()?, values.last()?);
        Some(Spread {
            median: quantile(&values, 0.5),
            min,
            max,
            q1: quantile(&values, 0.25),
            q3: quantile(&values, 0.75),
            rounds: values.len(),
        })
    }

    /// All of it times a factor that is not negative.
    pub fn times(self, factor: f64) -> Self {
        Spread {
            median: self.median * factor,
            min: self.min * factor,
            max: self.max * factor,
            q1: self.q1 * factor,
            q3: self.q3 * factor,
            rounds: self.rounds,
        }
    }

    /// `12.3 (11.0–14.1)`, with so many digits after the point.
    pub fn show(&self, digits: usize) -> String {
        if self.rounds == 1 {
            return format!("{:.digits$}", self.median);
        }
        format!("{:.digits$} ({:.digits$}–{:.digits$})", self.median, self.min, self.max)
    }

    /// The same with the quartiles in parentheses.
    pub fn quartiles(&self, digits: usize) -> String {
        Spread { min: self.q1, max: self.q3, ..*self }.show(digits)
    }
}

/// Of sorted values, at least one; linear between neighbours.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let at = q * (sorted.len() - 1) as f64;
    let below = at.floor() as usize;
    let above = (below + 1).min(sorted.len() - 1);
    sorted[below] + (sorted[above] - sorted[below]) * (at - below as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_even_and_single() {
        let odd = Spread::of([5.0, 1.0, 3.0]).unwrap();
        assert_eq!((odd.median, odd.min, odd.max, odd.rounds), (3.0, 1.0, 5.0, 3));
        let even = Spread::of([4.0, 1.0, 2.0, 3.0]).unwrap();
        assert_eq!((even.median, even.q1, even.q3), (2.5, 1.75, 3.25));
        let one = Spread::of([7.0]).unwrap();
        assert_eq!((one.median, one.q1, one.q3, one.min, one.max), (7.0, 7.0, 7.0, 7.0, 7.0));
        assert_eq!(one.show(1), "7.0");
        assert_eq!(odd.show(0), "3 (1–5)");
        assert_eq!((odd.quartiles(1), one.quartiles(1)), ("3.0 (2.0–4.0)".into(), "7.0".into()));
    }

    #[test]
    fn nothing_and_no_numbers() {
        assert_eq!(Spread::of([]), None);
        assert_eq!(Spread::of([f64::NAN, f64::INFINITY]), None);
        assert_eq!(Spread::of([f64::NAN, 2.0]).unwrap().median, 2.0);
    }

    #[test]
    fn scaling_keeps_the_shape() {
        let spread = Spread::of([1.0, 2.0, 4.0]).unwrap().times(100.0);
        assert_eq!((spread.median, spread.min, spread.max), (200.0, 100.0, 400.0));
    }
}

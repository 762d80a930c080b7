//! Times as people type them.

/// A time of a run: above 0, at most an hour.
pub fn seconds(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('s').parse::<f64>() {
        Ok(seconds) if seconds > 0.0 && seconds <= 3600.0 => Ok(seconds),
        _ => Err("give seconds, above 0 and at most 3600".into()),
    }
}

/// A limit: above 0.
pub fn minutes(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(minutes) if minutes > 0.0 && minutes <= 1e5 => Ok(minutes),
        _ => Err("give minutes, above 0".into()),
    }
}

//! How the laboratory ends badly.

/// What was tried, what happened, what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LabError {
    /// What was asked for makes no sense.
    #[error("{0}")]
    Usage(String),
    /// It was understood and did not succeed.
    #[error("{0}")]
    Failed(String),
    /// A signal ended it. What was measured is stored.
    #[error("interrupted; what was measured is stored, and the same command goes on from there")]
    Interrupted,
}

/// The result of whatever the laboratory does.
pub type Outcome<T = ()> = Result<T, LabError>;

/// [`LabError::Failed`] with what was tried before the system's own words.
pub fn failed<E: std::fmt::Display>(tried: impl Into<String>) -> impl FnOnce(E) -> LabError {
    let tried = tried.into();
    move |error| LabError::Failed(format!("{tried}: {error}"))
}

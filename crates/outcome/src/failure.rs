//! Constructors of errors. Every error of the program is a [`ConfigError`]: one line that names the
//! object first, then says what happened. [`wrong`] and [`refused`] are for values: the field, the
//! value found and the value expected. For a state use [`ConfigError::new`] and say it directly.

use std::fmt::Display;
use std::io;

use cairn_block::{ConfigError, ConfigKind};

/// What an operation returns.
pub type Outcome<T> = Result<T, ConfigError>;

/// A wrong argument of the user's.
pub fn wrong(
    device: impl Into<String>,
    field: &str,
    found: impl Display,
    expected: impl Display,
) -> ConfigError {
    refused(ConfigKind::Argument, device, field, found, expected)
}

/// A refusal of any kind.
pub fn refused(
    kind: ConfigKind,
    device: impl Into<String>,
    field: &str,
    found: impl Display,
    expected: impl Display,
) -> ConfigError {
    ConfigError::new(kind, device, format!("{field}: found {found}, expected {expected}"))
}

/// A system call failed while doing `what` to `device`.
pub fn system(device: impl Into<String>, what: &str, error: io::Error) -> ConfigError {
    if error.kind() == io::ErrorKind::NotFound {
        let detail = format!("{what}: there is no such file or folder");
        return ConfigError::new(ConfigKind::System, device, detail);
    }
    ConfigError::new(ConfigKind::System, device, what).with_source(error)
}

/// Separates [`ConfigKind::Lost`] (it was done, but acknowledged writes may be lost) from errors.
///
/// # Errors
/// It was not done.
pub fn unless_lost(result: Outcome<()>) -> Outcome<Option<ConfigError>> {
    match result {
        Ok(()) => Ok(None),
        Err(error) if error.kind == ConfigKind::Lost => Ok(Some(error)),
        Err(error) => Err(error),
    }
}

/// The first loss in the steps of a verb that continues. The verb reports it at its end.
#[derive(Debug, Default)]
pub struct Losses(Option<ConfigError>);

impl Losses {
    /// Keeps a loss for the end.
    ///
    /// # Errors
    /// The step was not done.
    pub fn keep(&mut self, result: Outcome<()>) -> Outcome<()> {
        if let Some(lost) = unless_lost(result)? {
            tracing::error!("{lost}");
            self.0.get_or_insert(lost);
        }
        Ok(())
    }

    /// The result of a verb that has done all its steps.
    ///
    /// # Errors
    /// Acknowledged writes may be lost.
    pub fn told(self) -> Outcome<()> {
        self.0.map_or(Ok(()), Err)
    }
}

/// An error on one line, whatever a library put into it.
pub fn one_line(error: &ConfigError) -> String {
    error.to_string().split_whitespace().collect::<Vec<_>>().join(" ")
}

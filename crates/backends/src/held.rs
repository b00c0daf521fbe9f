//! Devices that another program holds, and waiting until it releases them.
//!
//! When a program is killed, its io_uring keeps its descriptors, and with them the locks, until its
//! operations in flight have ended. So no other program writes at the same time as these last
//! operations. They end within milliseconds, usually after the killed program itself is gone;
//! therefore a program that starts retries for a while.
//!
//! Opening tries once and never sleeps: a reactor may do it. Its refusal has [`HeldElsewhere`] as
//! source. A thread that may sleep opens through [`patiently`], and the start of a server through
//! [`very_patiently`]: after a kill of the server before it, a device may be slow to end its last
//! operations.

use std::time::Duration;

use cairn_block::{ConfigError, ConfigKind};

/// How many times to try, and the pause in between.
const TRIES: usize = 50;
const TRIES_AT_START: usize = 1000;
const PAUSE: Duration = Duration::from_millis(10);

/// The source of a refusal because another program holds the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it may let go of it soon")]
pub struct HeldElsewhere;

/// The refusal of a device that another program holds.
pub(crate) fn held(path: &str, detail: impl Into<String>) -> ConfigError {
    ConfigError::new(ConfigKind::Busy, path, detail).with_source(HeldElsewhere)
}

fn is_held(error: &ConfigError) -> bool {
    error.source.as_ref().is_some_and(|source| source.is::<HeldElsewhere>())
}

/// Retries for half a second while another program holds a device. Sleeps: not for reactors.
///
/// # Errors
/// The last attempt's error; any error with another reason is returned at once.
pub fn patiently<T>(attempt: impl FnMut() -> Result<T, ConfigError>) -> Result<T, ConfigError> {
    retry(TRIES, attempt)
}

/// The same, for ten seconds; says so after half a second.
///
/// # Errors
/// As for [`patiently`].
pub fn very_patiently<T>(
    attempt: impl FnMut() -> Result<T, ConfigError>,
) -> Result<T, ConfigError> {
    retry(TRIES_AT_START, attempt)
}

fn retry<T>(
    tries: usize,
    mut attempt: impl FnMut() -> Result<T, ConfigError>,
) -> Result<T, ConfigError> {
    for tried in 1..tries {
        match attempt() {
            Err(error) if is_held(&error) => {
                if tried == TRIES {
                    tracing::info!("{error}; waiting for up to 10 s");
                }
                std::thread::sleep(PAUSE);
            }
            ended => return ended,
        }
    }
    attempt().map_err(|error| match is_held(&error) {
        true => ConfigError { source: None, ..error },
        false => error,
    })
}

#[cfg(test)]
mod tests {
    use super::{ConfigError, ConfigKind, held, patiently};

    #[test]
    fn a_device_that_becomes_free_is_opened() {
        let mut left = 3;
        let opened = patiently(|| {
            left -= 1;
            if left > 0 { Err(held("slow.img", "held")) } else { Ok(left) }
        });
        assert_eq!(opened.unwrap(), 0);
    }

    #[test]
    fn other_refusals_are_returned_at_once() {
        let mut tries = 0;
        let refused = patiently(|| -> Result<(), ConfigError> {
            tries += 1;
            Err(ConfigError::new(ConfigKind::Busy, "vm", "used by another volume"))
        });
        assert_eq!((refused.unwrap_err().kind, tries), (ConfigKind::Busy, 1));
    }
}

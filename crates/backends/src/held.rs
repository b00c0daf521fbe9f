//! Devices that another program holds, and waiting for it to let go.
//!
//! When a program is killed, its io_uring keeps its descriptors, and with them the locks, until
//! what it had in flight has ended: nobody writes beside the last writes of the dead. That is over
//! in milliseconds, mostly after the program itself is gone, so a program that starts asks again
//! for a while.
//!
//! Opening asks once and never sleeps: a reactor may do it. Its refusal has [`HeldElsewhere`] as
//! source; a thread that may sleep opens through [`patiently`].

use std::time::Duration;

use cairn_block::{ConfigError, ConfigKind};

/// How often is asked, and the pause in between.
const TRIES: usize = 50;
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

/// Tries again for half a second while another program holds a device. Sleeps: not for reactors.
///
/// # Errors
/// The last attempt's, or at once any that has another reason.
pub fn patiently<T>(mut attempt: impl FnMut() -> Result<T, ConfigError>) -> Result<T, ConfigError> {
    for _ in 1..TRIES {
        match attempt() {
            Err(error) if is_held(&error) => std::thread::sleep(PAUSE),
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
    fn other_refusals_are_told_at_once() {
        let mut tries = 0;
        let refused = patiently(|| -> Result<(), ConfigError> {
            tries += 1;
            Err(ConfigError::new(ConfigKind::Busy, "vm", "used by another volume"))
        });
        assert_eq!((refused.unwrap_err().kind, tries), (ConfigKind::Busy, 1));
    }
}

//! Dirty markers (`cairn_block::dirty_marker`) by device argument: the name in notes, and the
//! removal by hand.

use cairn_block::ConfigError;
use cairn_block::dirty_marker::DirtyMarker;

use crate::argument::{is_path, kind_of};
use crate::remote::RemoteKind;
use crate::{file, nbd, rbd};

/// What the notes of dirty markers call the device of an argument.
///
/// # Errors
/// It is no URI of its kind, although it begins as one.
pub fn name_in_notes(device: &str) -> Result<String, ConfigError> {
    match kind_of(device) {
        Some(RemoteKind::Rbd) => rbd::name_in_notes(device),
        Some(RemoteKind::Nbd) => Ok(nbd::Target::of_device(device)?.name_of_export()),
        None if is_path(device) => Ok(file::name_in_notes(device)),
        _ => Ok(device.to_owned()),
    }
}

/// Removes the dirty marker of this generation from a device that no other program has open.
/// Answers what it was. Blocks the thread.
///
/// # Errors
/// Another marker stands, or none, or the device is in use, or its kind has none.
pub fn unmark(device: &str, generation: &str) -> Result<DirtyMarker, ConfigError> {
    match kind_of(device) {
        Some(RemoteKind::Rbd) => rbd::unmark(device, generation),
        Some(RemoteKind::Nbd) => nbd::unmark(device, generation),
        None if is_path(device) => file::unmark(device, generation),
        _ => {
            let expected = "rbd:POOL/IMAGE, a URI of NBD or the path of a file";
            Err(ConfigError::argument(device, "device", format!("'{device}'"), expected))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_without_a_place_for_markers_is_refused() {
        for device in ["mem:1M", "null:1M", "qcow2:/a"] {
            let line = unmark(device, "5f").unwrap_err().to_string();
            assert!(
                line.contains("expected rbd:POOL/IMAGE, a URI of NBD or the path of a file"),
                "{line}"
            );
            assert_eq!(name_in_notes(device).unwrap(), device);
        }
    }
}

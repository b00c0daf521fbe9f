//! The status line of `snapshot` and `snapshot-merge`.

use super::core::{Condition, Core};

/// The fields of the status line, unless one word says that the snapshot is not well.
pub const STATUS_FIELDS: &[&str] = &["allocated/total", "metadata"];

/// The status of what a target serves; a table that was never live has nothing allocated.
pub(super) fn line(core: Option<&Core>, merge_failed: bool, fresh: [u64; 3]) -> String {
    let usage = match core {
        Some(core) if !core.is_readable() && core.condition() != Condition::Stopped => {
            return "Invalid".to_owned();
        }
        Some(_) if merge_failed => return "Merge failed".to_owned(),
        Some(core) if core.condition() == Condition::Overflow => return "Overflow".to_owned(),
        Some(core) => core.store.usage(),
        None => fresh,
    };
    let [allocated, total, metadata] = usage;
    format!("{allocated}/{total} {metadata}")
}

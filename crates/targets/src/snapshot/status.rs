//! The report of `snapshot` and `snapshot-merge`.

use cairn_block::{Field, Report, Unit, Value};

use super::core::{Condition, Core};

/// The field that says how much of the store is in use, its metadata included.
pub const ALLOCATED: &str = "allocated/total";
/// The field that says how much of that is metadata.
pub const METADATA: &str = "metadata";
/// The fields of the status line, unless one word says that the snapshot is not well.
pub const STATUS_FIELDS: &[Field] =
    &[Field::new(ALLOCATED, Unit::Sectors), Field::new(METADATA, Unit::Sectors)];

/// The report of what a target serves; a table that was never live has nothing allocated.
pub(super) fn report(core: Option<&Core>, merge_failed: bool, fresh: [u64; 3]) -> Report {
    let usage = match core {
        Some(core) if !core.is_readable() && core.condition() != Condition::Stopped => {
            return Report::State("Invalid");
        }
        Some(_) if merge_failed => return Report::State("Merge failed"),
        Some(core) if core.condition() == Condition::Overflow => return Report::State("Overflow"),
        Some(core) => core.store.usage(),
        None => fresh,
    };
    let [allocated, total, metadata] = usage;
    Report::new(STATUS_FIELDS, [Value::Share(allocated, total), Value::Gauge(metadata)])
}

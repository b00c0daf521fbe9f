//! The report and the status line.

use cairn_block::{Field, Report, Unit, Value};

use super::Qcow2;

/// The fields of the status line.
pub(super) const STATUS_FIELDS: &[Field] = &[
    Field::new("cluster_size", Unit::Sectors),
    Field::new("used/total", Unit::Blocks),
    Field::new("uncommitted", Unit::Blocks),
    Field::new("mode", Unit::None),
];

impl Qcow2 {
    pub(super) fn make_report(&self) -> Report {
        let state = self.state.lock();
        let mode = match (self.read_only, state.is_failing) {
            (true, _) => "ro",
            (_, true) => "failing",
            _ => "rw",
        };
        let values = [
            Value::Gauge(self.geometry.cluster_sectors()),
            Value::Share(state.space.used(), state.space.capacity()),
            Value::Gauge(state.changes.len() as u64),
            Value::State(mode),
        ];
        Report::new(STATUS_FIELDS, values)
    }
}

//! The reports of `thin-pool` and `thin`.

use cairn_block::{Field, Report, SectorCount, Unit, Value};

use super::config::{Discards, PoolConfig};
use super::pool::{Mode, Pool};
use super::space::metadata_low_watermark;
use super::volume::Volume;
use crate::args::Device;

/// The fields of a pool's status line, unless one word says that it has failed.
pub const POOL_FIELDS: &[Field] = &[
    Field::new("transaction_id", Unit::None),
    Field::new("used/total_metadata", Unit::Blocks),
    Field::new("used/total_data", Unit::Blocks),
    Field::new("held_metadata_root", Unit::None),
    Field::new("mode", Unit::None),
    Field::new("discards", Unit::None),
    Field::new("no_space", Unit::None),
    Field::new("needs_check", Unit::None),
    Field::new("metadata_low_watermark", Unit::Blocks),
];

/// The fields of a volume's status line, unless one word says that the pool has failed.
pub const THIN_FIELDS: &[Field] = &[
    Field::new("mapped_sectors", Unit::Sectors),
    Field::new("highest_mapped_sector", Unit::Sectors),
];

/// Most metadata blocks of the reserve that a status line counts as used.
const RESERVE_MAX: u64 = 4096;

/// Metadata blocks that are kept for what must always be possible; shown as used.
pub(super) fn reserve(total: u64) -> u64 {
    RESERVE_MAX.min(total / 10)
}

/// What really happens: nothing is passed down to a device that takes no discards.
pub(super) fn discards_word(discards: Discards, data: &Device) -> &'static str {
    match discards {
        Discards::PassDown if data.disk.limits().discard => "discard_passdown",
        Discards::PassDown | Discards::NoPassDown => "no_discard_passdown",
        Discards::Ignore => "ignore_discard",
    }
}

pub(super) fn mode_word(mode: Mode) -> &'static str {
    match mode {
        Mode::Write => "rw",
        Mode::OutOfData => "out_of_data_space",
        Mode::OutOfMetadata | Mode::ReadOnly | Mode::Fail => "ro",
    }
}

fn no_space_word(error: bool) -> &'static str {
    if error { "error_if_no_space" } else { "queue_if_no_space" }
}

/// The report of a pool.
pub(super) fn of_pool(pool: &Pool) -> Report {
    if pool.mode() == Mode::Fail {
        return Report::State("Fail");
    }
    let facts = pool.metadata.facts();
    let metadata = pool.metadata.metadata_use();
    let (total, _) = pool.metadata.data_use();
    let used = total.saturating_sub(pool.free_data());
    let used_metadata = (metadata.used + reserve(metadata.total)).min(metadata.total);
    let values = [
        Value::Gauge(facts.transaction_id),
        Value::Share(used_metadata, metadata.total),
        Value::Share(used, total),
        facts.held_root.map_or(Value::Absent, Value::Gauge),
        Value::State(mode_word(pool.mode())),
        Value::State(discards_word(pool.discards(), &pool.data)),
        Value::State(no_space_word(pool.fails_when_full())),
        if facts.needs_check { Value::State("needs_check") } else { Value::Absent },
        Value::Gauge(metadata_low_watermark(metadata.total)),
    ];
    Report::new(POOL_FIELDS, values)
}

/// The report of a pool whose table was never live.
pub(super) fn of_fresh_pool(config: &PoolConfig) -> Report {
    let metadata = config.metadata.disk.sectors().0 / 8;
    let values = [
        Value::Gauge(0),
        Value::Share(0, metadata),
        Value::Share(0, config.data_blocks),
        Value::Absent,
        Value::State(if config.options.read_only { "ro" } else { "rw" }),
        Value::State(discards_word(config.options.discards, &config.data)),
        Value::State(no_space_word(config.options.error_if_full)),
        Value::Absent,
        Value::Gauge(metadata_low_watermark(metadata)),
    ];
    Report::new(POOL_FIELDS, values)
}

/// The report of a volume.
pub(super) fn of_volume(pool: &Pool, volume: &Volume) -> Report {
    if pool.mode() == Mode::Fail {
        return Report::State("Fail");
    }
    of_extent(volume.map.mapped(), volume.highest(), pool.block)
}

/// The report of a table that was never live.
pub(super) fn of_fresh_volume() -> Report {
    Report::new(THIN_FIELDS, [Value::Gauge(0), Value::Absent])
}

/// How many blocks are mapped, and which is the highest, in sectors. Both are taken from the
/// metadata without a check.
fn of_extent(mapped: u64, highest: Option<u64>, block: SectorCount) -> Report {
    let last = |highest: u64| highest.saturating_add(1).saturating_mul(block.0) - 1;
    let mapped = Value::Gauge(mapped.saturating_mul(block.0));
    let highest = highest.map_or(Value::Absent, |highest| Value::Gauge(last(highest)));
    Report::new(THIN_FIELDS, [mapped, highest])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_are_counted_from_blocks_whatever_the_metadata_says() {
        let fields = |mapped, highest| of_extent(mapped, highest, SectorCount(128)).line();
        assert_eq!(fields(0, None), "0 -");
        assert_eq!(fields(2, Some(7)), "256 1023");
        let (most, last) = (u64::MAX, u64::MAX - 1);
        assert_eq!(fields(1 << 60, Some(last)), format!("{most} {last}"));
        assert_eq!(fields(most, Some(most)), format!("{most} {last}"));
    }
}

//! The status lines of `thin-pool` and `thin`.

use cairn_block::SectorCount;

use super::config::{Discards, PoolConfig};
use super::pool::{Mode, Pool};
use super::space::metadata_low_watermark;
use super::volume::Volume;
use crate::args::Device;

/// The fields of a pool's status line, unless one word says that it has failed.
pub const POOL_FIELDS: &[&str] = &[
    "transaction_id",
    "used/total_metadata",
    "used/total_data",
    "held_metadata_root",
    "mode",
    "discards",
    "no_space",
    "needs_check",
    "metadata_low_watermark",
];

/// The fields of a volume's status line, unless one word says that the pool has failed.
pub const THIN_FIELDS: &[&str] = &["mapped_sectors", "highest_mapped_sector"];

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

/// The status of a pool.
pub(super) fn pool_line(pool: &Pool) -> String {
    if pool.mode() == Mode::Fail {
        return "Fail".to_owned();
    }
    let facts = pool.metadata.facts();
    let metadata = pool.metadata.metadata_use();
    let (total, _) = pool.metadata.data_use();
    let used = total.saturating_sub(pool.free_data());
    let used_metadata = (metadata.used + reserve(metadata.total)).min(metadata.total);
    let held = facts.held_root.map_or("-".to_owned(), |block| block.to_string());
    format!(
        "{} {used_metadata}/{} {used}/{total} {held} {} {} {} {} {}",
        facts.transaction_id,
        metadata.total,
        mode_word(pool.mode()),
        discards_word(pool.discards(), &pool.data),
        no_space_word(pool.fails_when_full()),
        if facts.needs_check { "needs_check" } else { "-" },
        metadata_low_watermark(metadata.total),
    )
}

/// The status of a pool whose table was never live.
pub(super) fn fresh_pool_line(config: &PoolConfig) -> String {
    let metadata = config.metadata.disk.sectors().0 / 8;
    format!(
        "0 0/{metadata} 0/{} - {} {} {} - {}",
        config.data_blocks,
        if config.options.read_only { "ro" } else { "rw" },
        discards_word(config.options.discards, &config.data),
        no_space_word(config.options.error_if_full),
        metadata_low_watermark(metadata),
    )
}

/// The status of a volume.
pub(super) fn thin_line(pool: &Pool, volume: &Volume) -> String {
    if pool.mode() == Mode::Fail {
        return "Fail".to_owned();
    }
    extent_fields(volume.map.mapped(), volume.highest(), pool.block)
}

/// How many blocks are mapped, and which is the highest, in sectors. Both are as the metadata has
/// them, whatever that says.
fn extent_fields(mapped: u64, highest: Option<u64>, block: SectorCount) -> String {
    let mapped = mapped.saturating_mul(block.0);
    match highest {
        Some(highest) => {
            let end = highest.saturating_add(1).saturating_mul(block.0);
            format!("{mapped} {}", end - 1)
        }
        None => format!("{mapped} -"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_are_counted_from_blocks_whatever_the_metadata_says() {
        let fields = |mapped, highest| extent_fields(mapped, highest, SectorCount(128));
        assert_eq!(fields(0, None), "0 -");
        assert_eq!(fields(2, Some(7)), "256 1023");
        let (most, last) = (u64::MAX, u64::MAX - 1);
        assert_eq!(fields(1 << 60, Some(last)), format!("{most} {last}"));
        assert_eq!(fields(most, Some(most)), format!("{most} {last}"));
    }
}

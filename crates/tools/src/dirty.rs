//! Refuses to overwrite what only a cache has.

use cairn_backends::{CrashFiles, LeftLog};
use cairn_block::{ConfigError, ConfigKind};
use cairn_outcome::failure::{Outcome, system};

use super::source::Source;
use super::{bcache, writecache};
use crate::args::DiscardDirty;

/// Refuses to overwrite dirty data: that of a cache that begins at this sector, or of one at the
/// start of the device, and what a killed server has acknowledged. Tells what is lost of a bcache
/// set that is given up by its UUID. Only judges: answers with the crash logs of what is given up,
/// which are there until [`give_up`].
///
/// # Errors
/// There is such a cache or log, or the device cannot be read.
pub fn refuse(
    source: &Source,
    start_sector: u64,
    discard: Option<DiscardDirty>,
) -> Outcome<Vec<LeftLog>> {
    let places = [Some(start_sector), (start_sector != 0).then_some(0)];
    for place in places.into_iter().flatten() {
        if discard.is_none() {
            writecache::refuse_dirty(source, place)?;
        }
        bcache::refuse_dirty(source, place, discard)?;
    }
    let left = CrashFiles::left_for(&source.name)?;
    if let (Some(log), None) = (left.first(), discard) {
        let detail = format!(
            "crash log: found {} records of writes that a killed server acknowledged, expected \
             none: `cairn serve` or `cairn flush` replays them, --discard-dirty gives them up",
            log.records
        );
        return Err(ConfigError::new(ConfigKind::Busy, &source.name, detail));
    }
    Ok(left)
}

/// Removes crash logs, so that nobody replays them over other metadata. It comes after the last
/// refusal, before the first write.
///
/// # Errors
/// The system refused.
pub fn give_up(source: &Source, logs: Vec<LeftLog>) -> Outcome<()> {
    logs.into_iter().try_for_each(|log| {
        log.give_up().map_err(|error| system(&source.name, "remove the crash log", error))
    })
}

//! A clone's verdict for `cairn check`.

use cairn_format::Severity;
use cairn_format::clone::{Bitset, read};
use cairn_outcome::failure::Outcome;
use serde_json::json;

use super::source::Source;
use super::thin::MetadataDevice;
use super::verdict::Verdict;

/// Checks the metadata that begins at `start_sector`: all of it, with its space map.
///
/// # Errors
/// The device cannot be read.
pub fn verdict(source: &Source, start_sector: u64) -> Outcome<Verdict> {
    let mut device = MetadataDevice::at(source, start_sector, "check")?;
    let read = read(&mut device);
    device.done();
    let (severity, findings, summary, facts) = match read? {
        Ok(bitset) => (Severity::Sound, Vec::new(), Some(summary(&bitset)), facts(&bitset)),
        Err(fault) => {
            let severity = Severity::Damaged;
            (severity, vec![(severity, fault.to_string())], None, json!({}))
        }
    };
    let (format, findings_left_out, lines) = (Some("dm-clone"), 0, Vec::new());
    Ok(Verdict { format, severity, findings, findings_left_out, summary, lines, facts })
}

fn summary(bitset: &Bitset) -> String {
    let (superblock, map) = (&bitset.superblock, &bitset.superblock.metadata_space_map);
    format!(
        "{} of {} regions of {} sectors hydrated, {} of {} metadata blocks",
        bitset.hydrated(),
        superblock.regions(),
        superblock.region_size.sectors(),
        bitset.used,
        map.blocks
    )
}

fn facts(bitset: &Bitset) -> serde_json::Value {
    let superblock = &bitset.superblock;
    json!({
        "header": {
            "region_sectors": superblock.region_size.sectors(),
            "sectors": superblock.target_sectors,
        },
        "counts": { "regions": superblock.regions(), "hydrated": bitset.hydrated() },
        "usage": {
            "metadata_blocks_used": bitset.used,
            "metadata_blocks": superblock.metadata_space_map.blocks,
        },
    })
}

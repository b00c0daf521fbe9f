//! Which sectors of which volume a damaged cache took with it, or one that is gone, for
//! `check --list-lost`.

use cairn_block::SECTOR_BYTES;
use cairn_format::bcache::check::{Backing, Certainty, Losses, Report, Volume};
use cairn_format::bcache::{BackingState, BackingSuperblock, OFFSET_MAX, Uuid};
use serde_json::{Value, json};

/// A range of bytes; it has no end where the size of the volume is not known.
struct Range {
    certainty: Certainty,
    offset: u64,
    length: Option<u64>,
}

/// What is not sound of one volume.
pub struct VolumeLosses {
    uuid: Uuid,
    label: String,
    /// Its index in the cache, if the cache knows it.
    inode: Option<u32>,
    /// What offsets count from: of a backing device that was not given, where its data begins is
    /// not known.
    is_of_device: bool,
    ranges: Vec<Range>,
}

/// What is not sound of the volumes of a cache, and of these backing devices.
pub fn of_set(report: &Report, losses: &Losses, backings: &[Backing]) -> Vec<VolumeLosses> {
    let has = |volume: &&Volume| volume.entry.is_live() || volume.entry.is_empty();
    let volumes = report.volumes.iter().filter(has);
    let mut all: Vec<VolumeLosses> =
        volumes.map(|volume| of_volume(volume, losses, backings)).collect();
    for (superblock, device_sectors) in backings.iter().filter_map(its_superblock) {
        let is_known = all.iter().any(|volume| volume.uuid == superblock.uuid());
        let set = report.superblock.as_ref().map(|cache| cache.set_uuid());
        if !is_known && set.is_none_or(|set| set == superblock.set_uuid()) {
            all.push(without_cache(superblock, device_sectors));
        }
    }
    all
}

/// What is not sound of a backing device whose cache is gone: what only the cache had is not known.
pub fn without_cache(superblock: &BackingSuperblock, device_sectors: u64) -> VolumeLosses {
    let sectors = device_sectors.saturating_sub(superblock.data_offset());
    let all =
        Range { certainty: Certainty::Suspect, offset: 0, length: Some(sectors * SECTOR_BYTES) };
    VolumeLosses {
        uuid: superblock.uuid(),
        label: superblock.label(),
        inode: None,
        is_of_device: false,
        ranges: if lacks_nothing(superblock) { Vec::new() } else { vec![all] },
    }
}

fn its_superblock(backing: &Backing) -> Option<(&BackingSuperblock, u64)> {
    Some((backing.superblock.as_ref().ok()?, backing.device_sectors))
}

/// True if the cache never had what the device lacks.
fn lacks_nothing(superblock: &BackingSuperblock) -> bool {
    matches!(superblock.state(), BackingState::None | BackingState::Clean)
}

fn of_volume(volume: &Volume, losses: &Losses, backings: &[Backing]) -> VolumeLosses {
    let entry = &volume.entry;
    let is_its = |(superblock, _): &(&BackingSuperblock, u64)| superblock.uuid() == entry.uuid;
    let device = backings.iter().filter_map(its_superblock).find(is_its);
    let sectors = match device {
        _ if entry.is_flash_only() => 0..entry.sectors,
        Some((superblock, device_sectors)) => superblock.data_offset()..device_sectors,
        None => 0..OFFSET_MAX,
    };
    let is_clean = device.is_some_and(|(superblock, _)| lacks_nothing(superblock));
    let found = losses.of(volume.inode, &sectors).into_iter();
    let ranges = found
        .filter(|(certainty, _)| *certainty == Certainty::Lost || !is_clean)
        .map(|(certainty, range)| Range {
            certainty,
            offset: (range.start - sectors.start) * SECTOR_BYTES,
            length: (range.end < OFFSET_MAX).then(|| (range.end - range.start) * SECTOR_BYTES),
        })
        .collect();
    VolumeLosses {
        uuid: entry.uuid,
        label: entry.label_text(),
        inode: Some(volume.inode),
        is_of_device: device.is_none() && !entry.is_flash_only(),
        ranges,
    }
}

/// A line for each range; one if there is none.
pub fn lines(volumes: &[VolumeLosses]) -> Vec<String> {
    let lines: Vec<String> = volumes.iter().flat_map(volume_lines).collect();
    match lines.is_empty() {
        true => vec!["nothing is lost".to_owned()],
        false => lines,
    }
}

fn volume_lines(volume: &VolumeLosses) -> impl Iterator<Item = String> {
    let name = match (volume.uuid, volume.inode) {
        (uuid, Some(inode)) if uuid.is_zero() => format!("inode {inode}"),
        (uuid, _) if volume.label.is_empty() => format!("volume {uuid}"),
        (uuid, _) => format!("volume {uuid} '{}'", volume.label),
    };
    let place = if volume.is_of_device { " of its backing device" } else { "" };
    volume.ranges.iter().map(move |range| {
        let (word, offset) = (word(range.certainty), range.offset);
        match range.length {
            Some(length) => format!("{name}: {word}: {length} bytes at {offset}{place}"),
            None => format!("{name}: {word}: all from byte {offset} on{place}"),
        }
    })
}

fn word(certainty: Certainty) -> &'static str {
    match certainty {
        Certainty::Lost => "lost",
        Certainty::Suspect => "suspect",
    }
}

/// The same with stable field names.
pub fn json(volumes: &[VolumeLosses]) -> Value {
    let range = |range: &Range| {
        json!({
            "state": word(range.certainty),
            "offset": range.offset,
            "length": range.length,
        })
    };
    let volume = |volume: &VolumeLosses| {
        json!({
            "uuid": (!volume.uuid.is_zero()).then(|| volume.uuid.to_string()),
            "label": volume.label,
            "inode": volume.inode,
            "offsets_of": if volume.is_of_device { "backing device" } else { "volume" },
            "ranges": volume.ranges.iter().map(range).collect::<Vec<_>>(),
        })
    };
    volumes.iter().map(volume).collect()
}

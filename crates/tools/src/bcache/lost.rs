//! Which sectors of which volume a damaged cache took with it, or one that is gone, for
//! `check --list-lost`.

use std::path::Path;

use cairn_block::{ConfigError, ConfigKind, SECTOR_BYTES};
use cairn_format::bcache::check::{Backing, Certainty, Losses, Report, Volume};
use cairn_format::bcache::zones::Newest;
use cairn_format::bcache::{BackingState, BackingSuperblock, OFFSET_MAX, Uuid};
use cairn_outcome::failure::{Outcome, system};
use serde_json::{Value, json};

/// A range of bytes; it has no end where the size of the volume is not known.
struct Range {
    certainty: Certainty,
    offset: u64,
    length: Option<u64>,
}

/// A part of the map of a volume; sound if `certainty` is none.
#[derive(Debug)]
pub struct MapPart {
    certainty: Option<Certainty>,
    offset: u64,
    length: u64,
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
    /// Its backing device was given.
    has_device: bool,
    /// Its size, if it is known.
    bytes: Option<u64>,
    ranges: Vec<Range>,
}

impl VolumeLosses {
    /// True if its backing device was given.
    pub fn has_device(&self) -> bool {
        self.has_device
    }
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
            all.push(without_cache(superblock, device_sectors, None));
        }
    }
    all
}

/// What is not sound of a backing device whose cache is gone: what lies in these sectors, or
/// anything if they are not known.
pub fn without_cache(
    superblock: &BackingSuperblock,
    device_sectors: u64,
    lost: Option<Vec<std::ops::Range<u64>>>,
) -> VolumeLosses {
    let first = superblock.data_offset();
    let all = || std::iter::once(first..device_sectors.max(first)).collect();
    let lost = if lacks_nothing(superblock) { Vec::new() } else { lost.unwrap_or_else(all) };
    let range = |sectors: std::ops::Range<u64>| Range {
        certainty: Certainty::Suspect,
        offset: (sectors.start - first) * SECTOR_BYTES,
        length: Some((sectors.end - sectors.start) * SECTOR_BYTES),
    };
    VolumeLosses {
        uuid: superblock.uuid(),
        label: superblock.label(),
        inode: None,
        is_of_device: false,
        has_device: true,
        bytes: Some(device_sectors.saturating_sub(first) * SECTOR_BYTES),
        ranges: lost.into_iter().map(range).collect(),
    }
}

/// The sectors of a backing device that may be lost, by the map of dirty zones in a file.
///
/// # Errors
/// The file cannot be read, has no sound map, or the map does not count for the device.
pub fn by_zones(
    path: &Path,
    superblock: &BackingSuperblock,
    device_sectors: u64,
) -> Outcome<Vec<std::ops::Range<u64>>> {
    let shown = || path.display().to_string();
    let bytes = std::fs::read(path).map_err(|error| system(shown(), "read", error))?;
    let newest = Newest::of(&bytes).ok_or_else(|| {
        let detail = "zones: found no sound map, expected a map of dirty zones";
        ConfigError::new(ConfigKind::Damaged, shown(), detail)
    })?;
    newest.map.lost(superblock, device_sectors).map_err(|error| {
        let detail = format!("{error}; the map does not count for the device: all may be lost");
        ConfigError::new(ConfigKind::Argument, shown(), detail)
    })
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
    // A superblock may be called clean although the cache has dirty extents of it.
    let is_clean = volume.dirty_sectors == 0
        && device.is_some_and(|(superblock, _)| lacks_nothing(superblock));
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
        has_device: device.is_some(),
        is_of_device: device.is_none() && !entry.is_flash_only(),
        bytes: (sectors.end < OFFSET_MAX)
            .then(|| sectors.end.saturating_sub(sectors.start) * SECTOR_BYTES),
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
            "bytes": volume.bytes,
            "offsets_of": if volume.is_of_device { "backing device" } else { "volume" },
            "ranges": volume.ranges.iter().map(range).collect::<Vec<_>>(),
        })
    };
    volumes.iter().map(volume).collect()
}

/// All of a volume, as ranges of bytes that follow each other.
///
/// # Errors
/// How many volumes of known size there are, if it is not one.
pub fn map(volumes: &[VolumeLosses]) -> Result<Vec<MapPart>, usize> {
    let known: Vec<(&VolumeLosses, u64)> =
        volumes.iter().filter_map(|volume| Some((volume, volume.bytes?))).collect();
    let [(volume, bytes)] = known[..] else { return Err(known.len()) };
    let mut parts = Vec::with_capacity(volume.ranges.len() * 2 + 1);
    let mut at = 0;
    let mut add = |certainty, upto| {
        if at < upto {
            parts.push(MapPart { certainty, offset: at, length: upto - at });
            at = upto;
        }
    };
    for range in &volume.ranges {
        add(None, range.offset);
        let end = range.length.map_or(bytes, |length| range.offset + length);
        add(Some(range.certainty), end.min(bytes));
    }
    add(None, bytes);
    Ok(parts)
}

impl MapPart {
    /// Type and description, as for an NBD client.
    fn kind(&self) -> (u8, &'static str) {
        match self.certainty {
            None => (0, "sound"),
            Some(Certainty::Lost) => (1, word(Certainty::Lost)),
            Some(Certainty::Suspect) => (2, word(Certainty::Suspect)),
        }
    }
}

/// The lines of `nbdinfo --map`.
pub fn map_lines(parts: &[MapPart]) -> String {
    let line = |part: &MapPart| {
        let (MapPart { offset, length, .. }, (number, word)) = (part, part.kind());
        format!("{offset:>10}  {length:>10}  {number:>3}  {word}\n")
    };
    parts.iter().map(line).collect()
}

/// The objects of `nbdinfo --map --json`.
pub fn map_json(parts: &[MapPart]) -> Value {
    let object = |part: &MapPart| {
        let (number, word) = part.kind();
        json!({
            "offset": part.offset,
            "length": part.length,
            "type": number,
            "description": word,
        })
    };
    parts.iter().map(object).collect()
}

#[cfg(test)]
mod tests {
    use super::{Certainty, Range, VolumeLosses, map, map_json, map_lines};
    use cairn_format::bcache::Uuid;

    fn volume(bytes: Option<u64>, ranges: &[(Certainty, u64, Option<u64>)]) -> VolumeLosses {
        let range = |&(certainty, offset, length)| Range { certainty, offset, length };
        VolumeLosses {
            uuid: Uuid([1; 16]),
            label: String::new(),
            inode: Some(0),
            is_of_device: false,
            has_device: true,
            bytes,
            ranges: ranges.iter().map(range).collect(),
        }
    }

    #[test]
    fn map_of_a_volume_covers_each_byte_once() {
        let (lost, suspect) = (Certainty::Lost, Certainty::Suspect);
        let damaged = [(lost, 512, Some(512)), (suspect, 1024, Some(512)), (lost, 4096, None)];
        let parts = map(&[volume(Some(8192), &damaged)]).expect("one volume");
        let mut at = 0;
        for part in &parts {
            assert_eq!(part.offset, at);
            at += part.length;
        }
        assert_eq!(at, 8192);
        let expected = "         0         512    0  sound
       512         512    1  lost
      1024         512    2  suspect
      1536        2560    0  sound
      4096        4096    1  lost
";
        assert_eq!(map_lines(&parts), expected);
        assert_eq!(map_json(&parts)[2]["description"], "suspect");
    }

    #[test]
    fn map_needs_one_volume_of_known_size() {
        let (known, unknown) = (|| volume(Some(8192), &[]), || volume(None, &[]));
        assert_eq!(map(&[known(), unknown()]).ok().map(|parts| parts.len()), Some(1));
        assert_eq!(map(&[unknown()]).err(), Some(0));
        assert_eq!(map(&[known(), known()]).err(), Some(2));
        assert!(map(&[volume(Some(0), &[])]).is_ok_and(|parts| parts.is_empty()));
    }
}

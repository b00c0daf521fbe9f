//! A backing device that is forced to run because its cache is gone, and what must hold of the list
//! of what is lost.
//!
//! F1. Each sector that reads otherwise than with the cache is in the list; or the run says that
//!     the lost data may be anywhere, as the map does not count.
//! F2. The list has marked zones of the map alone.
//! F3. If the volume was closed, and no session of the set began since, each zone of the list has
//!     dirty data. (If the set has other volumes, the session may be theirs, and go on: then the
//!     list of a closed volume may name what was written back later.)
//! F4. The state is inconsistent, durably: no cache counts any more.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use cairn_format::bcache::{BackingState, Key, SECTOR_BYTES, ZoneMap};
use cairn_sim::Image;

use super::judge::{Devices, inode_of, superblock_of_backing};
use super::zone_maps::{SlowMaps, ZONE_SECTORS};
use super::{Cache, Lab};

/// How much a list said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Look {
    /// Nothing is lost.
    Whole,
    /// Something is, and it may be anywhere.
    Anywhere,
    /// The list has it.
    Listed,
    /// The list has it, and no other zone.
    Exact,
}

/// What a forced run shows.
struct Forced {
    content: Vec<u8>,
    /// The sectors of the volume that it calls suspect; none if it says that any may be.
    suspect: Option<Vec<Range<u64>>>,
}

/// Collects the log.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("no panic").extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Judges what a forced run of a volume of so many sectors says, with this map, when the cache is
/// gone.
///
/// # Errors
/// The first of F1 to F4 that does not hold.
pub fn judge(
    name: &str,
    sectors: u64,
    map: &[u8],
    [cache, backing]: [&[u8]; 2],
) -> Result<Look, String> {
    let own = Cache::try_read(cache)?;
    let superblock = superblock_of_backing(backing);
    let inode = inode_of(&own, backing).ok_or("the set does not know its device")?;
    let devices = Devices { cache, backings: &[] };
    let together = devices.content_of(inode, Some(backing), sectors);
    let forced = force(name, sectors, map, backing)?;
    let sector_of = |content: &[u8], sector: u64| {
        let at = sector as usize * SECTOR_BYTES;
        content[at..at + SECTOR_BYTES].to_vec()
    };
    let is_lost =
        |sector: &u64| sector_of(&together, *sector) != sector_of(&forced.content, *sector);
    let lost: Vec<u64> = (0..sectors).filter(is_lost).collect();
    let Some(suspect) = forced.suspect else {
        return Ok(if lost.is_empty() { Look::Whole } else { Look::Anywhere });
    };
    let is_listed = |sector: &u64| suspect.iter().any(|range| range.contains(sector));
    if let Some(sector) = lost.iter().find(|sector| !is_listed(sector)) {
        return Err(format!("{name}: sector {sector} is lost, and not in the list {suspect:?}"));
    }
    let (_, map) = ZoneMap::decode_slot(map).ok_or("the map is not sound")?;
    let first = superblock.data_offset();
    let listed = (0..sectors).filter(is_listed).map(|sector| (first + sector) / ZONE_SECTORS);
    let is_alone = own.loaded.volumes.iter().filter(|it| !it.uuid.is_zero()).count() == 1;
    let is_closed = map.is_closed && map.cache_seq == own.superblock.seq() && is_alone;
    let is_dirty = |zone: u64| {
        let zone = zone * ZONE_SECTORS..(zone + 1) * ZONE_SECTORS;
        let is_in = |key: &Key| key.start() < zone.end && key.end() > zone.start;
        own.extents.iter().any(|key| key.inode() == inode && key.is_dirty() && is_in(key))
    };
    for zone in listed {
        if !map.is_marked(zone) {
            return Err(format!("{name}: zone {zone} is in the list, and not marked"));
        }
        if is_closed && !is_dirty(zone) {
            return Err(format!(
                "{name}: zone {zone} is in the list of a closed volume, and clean"
            ));
        }
    }
    Ok(match lost.is_empty() {
        true => Look::Whole,
        false if is_closed => Look::Exact,
        false => Look::Listed,
    })
}

/// Forces a copy of a backing device to run, on a server that has one map.
fn force(name: &str, sectors: u64, map: &[u8], backing: &[u8]) -> Result<Forced, String> {
    let set = superblock_of_backing(backing).set_uuid();
    let images = [&[0; SECTOR_BYTES][..], backing].map(Image::of_bytes);
    let lab = Lab::of_images(1, images);
    lab.keep_zones(Arc::new(SlowMaps::with(name, map)));
    let (log, line) = (Log::default(), format!("0 {sectors} bcache backing - 2 force {set}"));
    let writer = log.clone();
    let subscriber =
        tracing_subscriber::fmt().with_ansi(false).with_writer(move || writer.clone()).finish();
    let opened = tracing::subscriber::with_default(subscriber, || lab.try_open(&line, false));
    let volume = opened.map_err(|error| format!("{line}: {error}"))?;
    let content = lab.read_all(&volume);
    let state = superblock_of_backing(&lab.images()[1]).state();
    if !matches!(state, BackingState::Stale) {
        return Err(format!("{name}: a forced run has left the state {state:?}"));
    }
    lab.close(&volume);
    let log = String::from_utf8(log.0.lock().expect("no panic").clone()).expect("it is text");
    let suspect = match log.contains("may be anywhere") {
        true => None,
        false => Some(log.lines().filter_map(suspect_in).collect()),
    };
    Ok(Forced { content, suspect })
}

/// The sectors of the volume that a line of the log calls suspect.
fn suspect_in(line: &str) -> Option<Range<u64>> {
    let (bytes, at) = line.split_once("suspect: ")?.1.split_once(" bytes at ")?;
    let number = |text: &str| text.parse::<u64>().expect("a number") / SECTOR_BYTES as u64;
    let (count, start) = (number(bytes), number(at));
    Some(start..start + count)
}

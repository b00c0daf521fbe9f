//! The map of dirty zones: where the backing device lacks data is known when the cache is gone.
//!
//! The server keeps the map of a volume in a file (`cairn_block::ZoneMaps`). The layout, and when a
//! map counts, is in `format::bcache::zones`. Without a server that keeps maps, and for volumes
//! without a backing device, there is none, and nothing waits for one.
//!
//! # Invariants
//! Y1. Data becomes dirty, or is written in place, only in a zone that is *marked*: the map has its
//!     bit, durably, as one of this session of the set. So each dirty extent lies in a zone of the
//!     map, or the map is not of the newest session and does not count.
//! Y2. Marks change under the lock of the set, under which a write learns its way. A mark is set
//!     after the map with it is durable. Marks end while no write into the cache is mapped or in
//!     flight, and nothing is dirty, durably.
//! Y3. The next map names each zone that is marked, that had dirty data when the volume was
//!     resumed, or that a write waits for. So both maps that a failed write may leave name what is
//!     dirty.
//! Y4. One task writes the map at a time.
//! Y5. A map that cannot be written fails no write of a client: for [`RETRY`] writes to zones
//!     without a mark go around the cache, and what is dirty there is written back first, as during
//!     a detach (`writeback::ahead`). A write that neither device takes fails.
//! Y6. A kernel that uses a set in state `dirty` writes no map, and leaves no trace on the backing
//!     device. So a resumed volume compares the maps that count with what the cache has: if they
//!     lack something dirty, a map of the same session that names it is durable before the volume
//!     serves, or all of them are dropped: every zone is suspect then.
//!
//! # Order of the first write to a zone
//! 1. The session begins, and the superblock of the backing device says `dirty`; its write-intent
//!    map names the session (`states`).
//! 2. The map with the zone, and with all zones that have dirty data already.
//! 3. The mark; then the write is mapped again and becomes dirty data.
//!
//! # What a crash leaves, if the cache is lost with it
//! - Before 1: the map of the former session, which counts, as nothing became dirty since.
//! - Between 1 and 2: the map of the former session, which does not count: every zone is suspect,
//!   though nothing is dirty that it lacks.
//! - Between 2 and 3: a map that names too much.
//! - After 3: a map that names the zone.
//!
//! A volume that comes to rest writes the map again, as a closed one, with the zones that are dirty
//! then. If this fails the former map names more.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::sync::Mutex;
use cairn_block::sync::atomic::{AtomicU64, Ordering};
use cairn_block::{Env, RequestId, Time, ZoneMaps, keep_zones};
use cairn_format::bcache::{BackingState, BackingSuperblock, Key, Uuid, ZoneMap};

use super::btree::{Span, Which};
use super::canary::{Bug, planted};
use super::coverage::{self, Path};
use super::set::{Core, WriteError};
use super::volume::Bcache;
use crate::fair::Fair;

/// How long no map is written after one that failed.
const RETRY: Duration = Duration::from_secs(5);

/// The zones of sectors; a zone has 2 to the power of `shift` sectors.
fn zones_of(sectors: Range<u64>, shift: u32) -> Range<u64> {
    sectors.start >> shift..((sectors.end - 1) >> shift) + 1
}

/// Zones, a bit for each, from bit 0 of the first word on. Those behind the end of the device are
/// left out: a map says that they count.
#[derive(Clone, Default)]
struct Named(Box<[u64]>);

impl Named {
    fn of_words(words: usize) -> Named {
        Named(vec![0; words].into())
    }

    fn add(&mut self, zones: Range<u64>) {
        for zone in zones {
            if let Some(word) = self.0.get_mut((zone / 64) as usize) {
                *word |= 1 << (zone % 64);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }
}

struct State {
    /// The zones of the next map (Y3).
    named: Named,
    /// Writes to zones without a mark.
    parked: Vec<RequestId>,
    /// A task writes the map for them.
    is_marking: bool,
    /// The last map could not be written: no other one is until then.
    failed_until: Time,
    /// The map that is kept is of this session.
    is_of_session: bool,
}

/// See the module's description.
pub(super) struct Zones {
    maps: Arc<dyn ZoneMaps>,
    /// The name of the map: that of the volume, and where the line begins if that is not sector 0.
    name: String,
    /// Sectors of the backing device when the table was loaded.
    device_sectors: u64,
    /// A zone has 2 to the power of this sectors.
    shift: u32,
    /// As in [`Named`] (Y2).
    marks: Box<[AtomicU64]>,
    state: Mutex<State>,
    /// Y4.
    writing: Fair<()>,
}

impl Zones {
    /// No marks, for the line of a volume that begins at a sector, and a backing device of so many
    /// sectors.
    pub fn new(maps: Arc<dyn ZoneMaps>, volume: &str, start: u64, device_sectors: u64) -> Zones {
        // No volume and no snapshot has two of these signs in its name.
        let name = if start == 0 { volume.to_owned() } else { format!("{volume}@@{start}") };
        let shift = maps.zone_sectors().trailing_zeros();
        let words = device_sectors.div_ceil(64 << shift) as usize;
        let marks = (0..words).map(|_| AtomicU64::new(0)).collect();
        let state = Mutex::new(State {
            named: Named::of_words(words),
            parked: Vec::new(),
            is_marking: false,
            failed_until: Time(0),
            is_of_session: false,
        });
        Zones { maps, name, device_sectors, shift, marks, state, writing: Fair::new(()) }
    }

    /// True if what a request writes may become dirty (Y1).
    #[inline]
    pub fn are_marked(&self, span: &Span) -> bool {
        let is_marked = |zone: u64| {
            self.marks[(zone / 64) as usize].load(Ordering::Relaxed) >> (zone % 64) & 1 != 0
        };
        zones_of(span.start..span.end, self.shift).all(is_marked)
    }

    /// True if no map is written for now (Y5).
    pub fn refuse(&self, now: Time) -> bool {
        now < self.state.lock().failed_until
    }

    /// Parks a write until its zones are marked. True if the caller starts the task.
    pub fn park(&self, span: &Span, id: RequestId) -> bool {
        let mut state = self.state.lock();
        state.named.add(zones_of(span.start..span.end, self.shift));
        state.parked.push(id);
        !std::mem::replace(&mut state.is_marking, true)
    }

    /// The volume is resumed: nothing is marked.
    pub fn reset(&self) {
        self.end_all_marks();
        let mut state = self.state.lock();
        state.named = Named::of_words(self.marks.len());
        (state.failed_until, state.is_of_session) = (Time(0), false);
    }

    /// These sectors are dirty already: the next map names their zones.
    pub fn name(&self, sectors: Range<u64>) {
        self.state.lock().named.add(zones_of(sectors, self.shift));
    }

    /// Nothing is dirty, durably, and no write into the cache is mapped: marks end (Y2).
    pub fn end_marks(&self) {
        let mut state = self.state.lock();
        if !state.is_marking {
            self.end_all_marks();
            state.named = Named::of_words(self.marks.len());
        }
    }

    fn end_all_marks(&self) {
        self.marks.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }

    fn named(&self) -> Named {
        self.state.lock().named.clone()
    }

    fn mark(&self, named: &Named) {
        for (mark, word) in self.marks.iter().zip(&named.0) {
            mark.fetch_or(*word, Ordering::Relaxed);
        }
    }

    /// Takes the writes that wait. With none the task ends.
    fn take_parked(&self) -> Option<Vec<RequestId>> {
        let mut state = self.state.lock();
        let parked = std::mem::take(&mut state.parked);
        state.is_marking = !parked.is_empty();
        state.is_marking.then_some(parked)
    }

    /// No cache counts for the backing device of this UUID: its maps are not needed.
    pub fn forget(&self, backing: Uuid) {
        forget_zones(self.maps.as_ref(), backing);
    }

    /// A map of a backing device in its set, without marks.
    fn map_of(&self, backing: &BackingSuperblock) -> ZoneMap {
        ZoneMap::new(backing.uuid(), backing.set_uuid(), self.device_sectors, 1 << self.shift)
    }

    /// Where a backing device may lack what its cache had, by the maps that are kept and that count
    /// for it. Several may: a copy of the device has its UUID, and a volume may have had another
    /// name. What one of them names counts. None if none counts.
    pub fn lost(
        &self,
        backing: &BackingSuperblock,
        device_sectors: u64,
    ) -> Option<Vec<Range<u64>>> {
        let kept = self.maps.all();
        let maps = kept.iter().filter_map(|(_, map)| ZoneMap::decode_slot(map));
        let of = |map: &ZoneMap| map.lost(backing, device_sectors).ok();
        let lost: Vec<Vec<Range<u64>>> = maps.filter_map(|(_, map)| of(&map)).collect();
        if lost.is_empty() {
            return None;
        }
        let mut ranges: Vec<Range<u64>> = lost.into_iter().flatten().collect();
        ranges.sort_unstable_by_key(|range| range.start);
        let mut joined: Vec<Range<u64>> = Vec::new();
        for range in ranges {
            match joined.last_mut() {
                Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
                _ => joined.push(range),
            }
        }
        Some(joined)
    }
}

/// True if one of these ranges, which are in order and do not touch, has all of these sectors.
fn has(ranges: &[Range<u64>], sectors: &Range<u64>) -> bool {
    let at = ranges.partition_point(|range| range.end <= sectors.start);
    ranges.get(at).is_some_and(|it| it.start <= sectors.start && sectors.end <= it.end)
}

/// Drops the maps of a backing device that belongs to no set.
pub(super) fn forget_zones(maps: &dyn ZoneMaps, backing: Uuid) {
    let is_its =
        |map: &[u8]| ZoneMap::decode_slot(map).is_some_and(|(_, map)| map.backing_uuid == backing);
    let its = maps.all().into_iter().filter(|(_, map)| is_its(map));
    its.for_each(|(name, _)| maps.forget(&name));
}

impl Bcache {
    /// True if what a request writes may become dirty without waiting for a map.
    #[inline]
    pub(super) fn is_zone_marked(&self, span: &Span) -> bool {
        self.zones.as_ref().is_none_or(|zones| zones.are_marked(span))
    }

    /// Writes the map for the writes that wait, until none does.
    pub(super) async fn mark_zones(&self, env: &Env) {
        let (Some(zones), Some(core)) = (&self.zones, &self.core) else { return };
        while let Some(parked) = zones.take_parked() {
            coverage::take(Path::MarkZone);
            if planted(Bug::DirtyBeforeMark) {
                core.with(|_| zones.mark(&zones.named()));
                parked.iter().for_each(|id| env.remap(*id));
            }
            self.write_and_mark(env, zones, core).await;
            if !planted(Bug::DirtyBeforeMark) {
                parked.into_iter().for_each(|id| env.remap(id));
            }
        }
    }

    /// The next map names what is dirty now; one that counts and lacks it is replaced (Y6).
    ///
    /// # Errors
    /// The set cannot be read.
    pub(super) async fn name_dirty_zones(&self, env: &Env, core: &Core) -> Result<(), WriteError> {
        let Some(zones) = &self.zones else { return Ok(()) };
        zones.reset();
        let backing = self.backing.lock().clone();
        let Some(backing) = backing.filter(|_| self.dirty_sectors() > 0) else { return Ok(()) };
        let is_dirty = backing.state() == BackingState::Dirty;
        let listed = zones.lost(&backing, zones.device_sectors).filter(|_| is_dirty);
        let mut is_listed = true;
        let mut name = |key: &Key| {
            if key.is_dirty() {
                let sectors = key.start()..key.end();
                is_listed &= listed.as_ref().is_none_or(|ranges| has(ranges, &sectors));
                zones.name(sectors);
            }
            true
        };
        core.scan_volume(env, self.inode(), Which::Dirty, &mut name).await?;
        if !is_listed {
            self.replace_zones(zones, &backing).await;
        }
        Ok(())
    }

    /// Y6. The new map is of the session that the device has as its newest, so it counts.
    async fn replace_zones(&self, zones: &Zones, backing: &BackingSuperblock) {
        tracing::warn!(
            "{}: another program has used the set since the map of dirty zones was written: the \
             map is replaced",
            self.config.volume
        );
        let is_kept = match backing.intent() {
            Some(intent) => {
                let mut map = zones.map_of(backing);
                map.cache_seq = intent.cache_seq;
                map.mark_words(&zones.named().0);
                keep_zones(zones.maps.as_ref(), &zones.name, map.encode_slot(0)).await
            }
            None => false,
        };
        if !is_kept {
            zones.forget(backing.uuid());
        }
    }

    /// A session begins in which something is dirty already: a map of it names that, so that the
    /// list counts although the session may make nothing dirty. If it cannot be written, the former
    /// map counts no more.
    pub(super) async fn renew_zones(&self, env: &Env) {
        let (Some(zones), Some(core)) = (&self.zones, &self.core) else { return };
        let is_due = {
            let state = zones.state.lock();
            !state.is_of_session && !state.named.is_empty()
        };
        if is_due {
            self.write_and_mark(env, zones, core).await;
        }
    }

    async fn write_and_mark(&self, env: &Env, zones: &Zones, core: &Core) {
        let _turn = zones.writing.lock().await;
        let named = zones.named();
        match self.write_zones(zones, &named, false).await {
            true => core.with(|_| zones.mark(&named)),
            false => zones.state.lock().failed_until = env.now() + RETRY,
        }
    }

    /// The volume comes to rest: the map names what is dirty now. A key that is clean in memory
    /// alone is not named: its data is durable on the backing device (I3).
    pub(super) async fn close_zones(&self, env: &Env) {
        let (Some(zones), Some(core)) = (&self.zones, &self.core) else { return };
        let _turn = zones.writing.lock().await;
        let mut named = Named::of_words(zones.marks.len());
        let mut add = |key: &Key| {
            if key.is_dirty() {
                named.add(zones_of(key.start()..key.end(), zones.shift));
            }
            true
        };
        if core.scan_volume(env, self.inode(), Which::Dirty, &mut add).await.is_err() {
            // The map of the session names more, and stays.
            return;
        }
        self.write_zones(zones, &named, true).await;
    }

    /// Writes a map that names these zones. True if it is durable.
    async fn write_zones(&self, zones: &Zones, named: &Named, is_closed: bool) -> bool {
        let Some(mut map) = self.map_of_session(zones) else { return false };
        map.is_closed = is_closed;
        map.mark_words(&named.0);
        let is_kept = keep_zones(zones.maps.as_ref(), &zones.name, map.encode_slot(0)).await;
        zones.state.lock().is_of_session = is_kept;
        is_kept
    }

    /// A map of this session without marks; none without a session.
    fn map_of_session(&self, zones: &Zones) -> Option<ZoneMap> {
        let mut map = zones.map_of(self.backing.lock().as_ref()?);
        let session = self.look(|set| {
            // The newest entry may be under way; the one before it is durable (J1).
            let numbers = (set.superblock.seq(), set.newest().saturating_sub(1));
            set.has_session().then_some(numbers)
        });
        (map.cache_seq, map.journal_seq) = session.flatten()?;
        Some(map)
    }
}

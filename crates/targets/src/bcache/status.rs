//! Status line, extents and the amount of dirty data.

use cairn_block::sync::atomic::Ordering;
use cairn_block::{
    Dirty, Env, Extent, ExtentKind, Field, IoError, Report, Sector, SectorCount, SectorRange, Unit,
    Value,
};
use cairn_format::bcache::{BackingState, BackingSuperblock};

use super::btree::{Found, Span};
use super::config::Devices;
use super::degraded::Service;
use super::volume::Bcache;

/// The fields of the status line, in order.
pub const STATUS_FIELDS: &[Field] = &[
    Field::new("state", Unit::None),
    Field::new("dirty_data", Unit::Sectors),
    Field::new("cache_available_percent", Unit::None),
    Field::new("cache_hits", Unit::Requests),
    Field::new("cache_misses", Unit::Requests),
];

/// Counters of requests.
#[derive(Clone, Copy)]
pub(super) enum Count {
    /// Of the status line.
    Hits,
    Misses,
    /// Writes into the cache.
    Writes,
    /// Requests of any kind; a request that is mapped in parts counts more than once.
    Requests,
    /// Reads of which the cache had all, or not all.
    ReadHits,
    ReadMisses,
    /// Reads that bypass the cache, of which it had all, or not all.
    BypassHits,
    BypassMisses,
    /// Misses whose data was not cached, since a write of their sectors came between.
    MissCollisions,
    /// Sectors of reads and writes that bypass the cache.
    BypassedSectors,
    /// Reads of clean data that failed on the cache device.
    ReadAgain,
    /// Sectors of data that were written into the cache.
    CachedSectors,
}

pub(super) const COUNTERS: usize = 12;

impl Bcache {
    /// The attachment state of the volume, in the words of sysfs.
    pub(super) fn state_word(&self) -> &'static str {
        if matches!(self.config.devices, Devices::Flash { .. }) {
            return "flash";
        }
        let state = self.backing.lock().as_ref().map(BackingSuperblock::state);
        state.unwrap_or(BackingState::None).word()
    }

    /// How much of the cache has neither dirty data nor metadata.
    pub(super) fn available(&self) -> Value {
        let available = self.look(|set| 100 - set.buckets.in_use_percent());
        available.map_or(Value::Absent, Value::Gauge)
    }

    pub(super) fn make_report(&self) -> Report {
        let counters = self.counters.read();
        let count = |counter: Count| Value::Counter(counters[counter as usize]);
        let word = self.state_word();
        let values = [
            Value::State(if word == "no cache" { "none" } else { word }),
            Value::Gauge(self.dirty_sectors.load(Ordering::Relaxed)),
            self.available(),
            count(Count::Hits),
            count(Count::Misses),
        ];
        Report::new(STATUS_FIELDS, values)
    }

    pub(super) async fn extents_of(
        &self,
        env: &Env,
        range: SectorRange,
    ) -> Result<Vec<Extent>, IoError> {
        let from = self.first + range.start.0;
        let want = range.count.0;
        let found = match self.service() {
            Service::Cached => self.found_at(env, from).await?,
            Service::Uncached => Some(Found::Hole { end: from + want }),
            Service::Stopped => return Err(IoError::IO),
        };
        let (kind, count) = match found {
            Some(Found::Absent) => unreachable!("its leaf is present"),
            Some(Found::Extent(key)) => (ExtentKind::Data, want.min(key.sectors())),
            Some(Found::Hole { end }) => (ExtentKind::Hole, want.min(end - from)),
            None if self.is_vouched_for() => (ExtentKind::Hole, want),
            None => (ExtentKind::Data, want),
        };
        match (kind, self.config.devices.backing()) {
            (ExtentKind::Hole, Some(backing)) => {
                let range = SectorRange::new(Sector(from), SectorCount(count));
                backing.disk.extents(env, range).await
            }
            _ => Ok(vec![Extent { count: SectorCount(count), kind }]),
        }
    }

    /// What the cache has at a sector; none if it is not open.
    async fn found_at(&self, env: &Env, from: u64) -> Result<Option<Found>, IoError> {
        let Some(core) = self.core.as_ref().filter(|core| core.lock().is_some()) else {
            return Ok(None);
        };
        let inode = self.inode();
        let span = Span { inode, start: from, end: from + 1 };
        let found = core.with_present(env, [span], |set| set.tree.find(inode, from)).await;
        found.map(Some).map_err(|_| IoError::IO)
    }

    /// True if the backing device is all there is, and its state says so. Otherwise a client must
    /// not take a hole of it for one of the volume: what the cache had is not known.
    fn is_vouched_for(&self) -> bool {
        let state = self.backing.lock().as_ref().map(BackingSuperblock::state);
        let is_sound = matches!(state, Some(BackingState::None | BackingState::Clean));
        self.passes || matches!(self.config.devices, Devices::Bare { .. }) && is_sound
    }

    /// The dirty sectors, as of the last resume and what was drained since. A flash-only volume
    /// lies in the cache alone: there is no other device that lacks its data.
    pub(super) fn what_is_dirty(&self) -> Option<Dirty> {
        let sectors = self.dirty_sectors.load(Ordering::Relaxed);
        let Devices::Cached { backing, cache } = &self.config.devices else { return None };
        let block = self.look(|set| u64::from(set.superblock.geometry().block_sectors()));
        let block = block.unwrap_or(1);
        (sectors > 0).then(|| Dirty {
            sectors: SectorCount(sectors),
            block: SectorCount(block),
            origin: backing.disk.clone(),
            device: cache.argument.clone(),
            since: None,
        })
    }
}

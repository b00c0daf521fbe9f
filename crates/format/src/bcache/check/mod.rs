//! Checks whether a cache is sound, alone or against its backing devices. No other checker exists.
//!
//! [`check`] reads through a [`Source`] and gives a [`Report`] of counts and findings. Each finding
//! has a [`Severity`], and the worst of them is the result. Nothing is repaired here.
//!
//! Sound: keys of volumes that were detached, stale keys, priorities of any value, entries of the
//! journal that are to be replayed.
//!
//! Sound after recovery:
//! - A part of an entry behind the newest: a power cut leaves it, and recovery leaves it out. A
//!   damaged newest entry looks the same.
//! - Dirty keys of a backing device whose state is clean. The kernel makes keys clean without an
//!   entry of the journal, and does not write a leaf that is the root when it stops a set; so keys
//!   whose data it wrote back are dirty on the device. Each activation counts the dirty sectors in
//!   the tree and does not rely on the state; a drain writes their data back again.
//!
//! Not in the format, so not checked: the mark of a bucket (reclaimable, dirty, metadata), its
//! count of used sectors, and the count of dirty sectors of each stripe. The kernel derives them
//! from the tree when it registers a set, and keeps them in memory alone. The dirty sectors of each
//! volume are derived here as well ([`Volume::dirty_sectors`]). What the device has of a bucket is
//! its generation, and a priority, which is 0xffff for metadata; that is out of date for a bucket
//! that was allocated after the priorities were last written, so that no priority is wrong.
//!
//! Not sound:
//! - a structure that does not verify: what it held is lost, and where it was a node, all that lies
//!   in its range is suspect ([`Report::suspect`]);
//! - a bucket that holds two things, or a sector that two extents name: one of them is not what was
//!   written;
//! - a dirty key that is stale: the only copy of its data is gone;
//! - an extent of no volume, or beyond the end of its volume;
//! - a backing device in state none although its cache is dirty: the kernel gives it a new volume,
//!   and drops the dirty data;
//! - a backing device that was used without its cache (state inconsistent).
//!
//! Memory: a [`Key`] per extent, four bytes per extent while their places are compared, and at most
//! [`FINDINGS_MAX`] findings; the rest are counted.

mod finding;
mod losses;

use std::ops::{ControlFlow, Range};

use super::extents::overlaid;
use super::load::{Fault, LoadError, Loaded, NodePlace, Source, Visitor, load};
use super::node::Node;
use super::places::is_beyond;
use super::uuids::UuidEntry;
use super::{
    Age, BackingState, BackingSuperblock, CacheSuperblock, Error, Geometry, Key, SECTOR_BYTES,
    STALE_MAX, SUPERBLOCK_BYTES, SUPERBLOCK_SECTOR, Superblock,
};
pub use crate::severity::Severity;
pub use finding::{Finding, Use};
use losses::Known;
pub use losses::{Certainty, Losses};

/// Limit on the findings kept in a report; further ones only count, for the severity too.
pub const FINDINGS_MAX: usize = 1000;

/// The most buckets of a cache that goes beyond the end of its device for which memory is taken.
const SHORT_BUCKETS_MAX: u64 = 1 << 22;

/// A backing device that the cache is checked against.
#[derive(Debug, Clone)]
pub struct Backing {
    /// Its superblock, or what is wrong with it.
    pub superblock: Result<BackingSuperblock, Error>,
    /// Sectors of the device.
    pub device_sectors: u64,
}

/// What was counted of one volume.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Volume {
    /// Its entry in the array of uuids.
    pub entry: UuidEntry,
    /// Its index there.
    pub inode: u32,
    /// Extents that are cached.
    pub extents: u64,
    /// Sectors that are cached.
    pub sectors: u64,
    /// Of these, the sectors whose only copy is in the cache.
    pub dirty_sectors: u64,
}

/// What was counted of the cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Buckets with metadata.
    pub metadata_buckets: u64,
    /// Buckets with data that counts.
    pub data_buckets: u64,
    /// Nodes of the tree.
    pub nodes: u64,
    /// Entries of the journal that count.
    pub journal_entries: u64,
    /// Extents that are cached.
    pub extents: u64,
    /// Sectors whose only copy is in the cache.
    pub dirty_sectors: u64,
}

/// What a check found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The superblock, if there is a sound one.
    pub superblock: Option<CacheSuperblock>,
    /// The worst finding.
    pub severity: Severity,
    /// The findings, at most [`FINDINGS_MAX`].
    pub findings: Vec<Finding>,
    /// How many findings there were beyond those.
    pub findings_left_out: u64,
    /// What was counted.
    pub totals: Totals,
    /// The volumes that the set has, or that have extents.
    pub volumes: Vec<Volume>,
    /// Ranges of keys that are not known, behind the first position up to the second.
    pub suspect: Vec<Range<(u32, u64)>>,
}

impl Report {
    fn begin() -> Report {
        Report {
            superblock: None,
            severity: Severity::Sound,
            findings: Vec::new(),
            findings_left_out: 0,
            totals: Totals::default(),
            volumes: Vec::new(),
            suspect: Vec::new(),
        }
    }

    fn add(&mut self, finding: Finding) {
        self.severity = self.severity.max(finding.severity());
        if self.findings.len() < FINDINGS_MAX {
            self.findings.push(finding);
        } else {
            self.findings_left_out += 1;
        }
    }

    fn add_fault(&mut self, fault: &Fault) {
        self.suspect.extend(losses::suspect_of(fault));
        self.add(Finding::Fault(fault.clone()));
    }
}

/// Checks a cache device, and what its backing devices say.
///
/// # Errors
/// Reading ended.
pub async fn check<S: Source>(
    source: &mut S,
    device_sectors: u64,
    backings: &[Backing],
) -> Result<Report, S::Error> {
    let mut report = Report::begin();
    check_device(source, device_sectors, backings, &mut report, None).await?;
    Ok(report)
}

/// Checks a cache device, and finds what damage took with it; for that all dirty data is read.
///
/// # Errors
/// Reading ended.
pub async fn check_losses<S: Source>(
    source: &mut S,
    device_sectors: u64,
    backings: &[Backing],
) -> Result<(Report, Losses), S::Error> {
    let mut report = Report::begin();
    // Until more is known.
    let mut losses = Losses::everything();
    check_device(source, device_sectors, backings, &mut report, Some(&mut losses)).await?;
    Ok((report, losses))
}

async fn check_device<S: Source>(
    source: &mut S,
    device_sectors: u64,
    backings: &[Backing],
    report: &mut Report,
    losses: Option<&mut Losses>,
) -> Result<(), S::Error> {
    let sectors = (SUPERBLOCK_BYTES / SECTOR_BYTES) as u64;
    let range = SUPERBLOCK_SECTOR..SUPERBLOCK_SECTOR + sectors;
    let superblock = match source.read(&[range]).await?.pop() {
        Some(Ok(bytes)) => Superblock::decode(&bytes),
        Some(Err(said)) => {
            report.add(Finding::Unreadable(said));
            return Ok(());
        }
        None => Err(Error::Short { found: 0 }),
    };
    let superblock = match superblock {
        Ok(Superblock::Cache(superblock)) => superblock,
        Ok(Superblock::Backing(_)) => {
            let (found, expected) = ("a backing device", "a cache device");
            report.add(Finding::Superblock(Error::Kind { found, expected }));
            return Ok(());
        }
        Err(error) => {
            report.add(Finding::Superblock(error));
            return Ok(());
        }
    };
    if superblock.is_obsolete() {
        report.add(Finding::Obsolete);
    }
    if let Err(error) = superblock.geometry().fits(device_sectors) {
        report.add(Finding::Superblock(error));
        if superblock.geometry().buckets() > SHORT_BUCKETS_MAX {
            return Ok(());
        }
    }
    if superblock.is_in_use() {
        check_contents(source, &superblock, backings, report, losses).await?;
    } else {
        if let Some(losses) = losses {
            *losses = Losses::default();
        }
        for backing in backings {
            check_backing(&superblock, backing, &[], report);
        }
    }
    report.superblock = Some(superblock);
    Ok(())
}

async fn check_contents<S: Source>(
    source: &mut S,
    superblock: &CacheSuperblock,
    backings: &[Backing],
    report: &mut Report,
    losses: Option<&mut Losses>,
) -> Result<(), S::Error> {
    let geometry = *superblock.geometry();
    let mut buckets = Buckets::new(superblock);
    let (extents, newer) = (Vec::new(), Vec::new());
    let mut visitor = Collect { report, buckets: &mut buckets, geometry, extents, newer };
    let loaded = load(source, superblock, &mut visitor).await;
    let (tree, newer) = (visitor.extents, visitor.newer);
    let loaded = match loaded {
        Ok(loaded) => loaded,
        Err(LoadError::Source(error)) => return Err(error),
        Err(LoadError::Fault(fault)) => {
            report.add_fault(&fault);
            return Ok(());
        }
    };
    report.totals.journal_entries = loaded.ring.entries.len() as u64;
    if let Some(torn) = &loaded.torn {
        report.add(Finding::Torn(torn.clone()));
    }
    for bucket in &loaded.priorities {
        buckets.take(*bucket, Use::Priorities, report);
    }
    if let Some(pointer) = loaded.newest.uuids.cached_at() {
        buckets.take(geometry.bucket_of(pointer.sector()), Use::Uuids, report);
    }
    check_ages(&loaded, &geometry, &tree, report);
    let mut extents = overlaid(tree, &loaded.journaled(&geometry));
    check_lost(&loaded, &geometry, &extents, report);
    let gone = losses.as_ref().map(|_| losses::gone(&loaded, &geometry, &extents));
    loaded.keep_live(&geometry, &mut extents);
    let in_doubt = check_places(&geometry, &extents, &mut buckets, report);
    if let Some(losses) = losses {
        let gone = gone.unwrap_or_default();
        let known = Known { loaded: &loaded, geometry: &geometry, newer, extents: &extents };
        *losses = losses::of_damage(report, &known, gone, &in_doubt);
        let sectors = losses::add_unreadable(losses, source, &geometry, &extents).await?;
        if sectors > 0 {
            report.add(Finding::DataUnreadable { sectors });
        }
    }
    report.totals.metadata_buckets = buckets.count(|of| of != Use::Data && of != Use::Free);
    report.totals.data_buckets = buckets.count(|of| of == Use::Data);
    count_volumes(&loaded, &extents, report);
    check_volumes(report);
    for backing in backings {
        check_backing(superblock, backing, &extents, report);
    }
    Ok(())
}

/// What each bucket is used for.
struct Buckets(Vec<Use>);

impl Buckets {
    fn new(superblock: &CacheSuperblock) -> Buckets {
        let geometry = superblock.geometry();
        let mut uses = vec![Use::Free; geometry.buckets() as usize];
        uses[..geometry.usable().start as usize].fill(Use::Superblock);
        for bucket in superblock.journal_buckets() {
            uses[bucket as usize] = Use::Journal;
        }
        Buckets(uses)
    }

    /// Notes what a bucket is used for; data may share it with data. False if it may not.
    fn take(&mut self, bucket: u64, new: Use, report: &mut Report) -> bool {
        match self.0.get_mut(bucket as usize) {
            Some(of @ Use::Free) => *of = new,
            Some(Use::Data) if new == Use::Data => (),
            None => (),
            Some(first) => {
                report.add(Finding::TwoUses { bucket, first: *first, second: new });
                return false;
            }
        }
        true
    }

    fn count(&self, is_it: impl Fn(Use) -> bool) -> u64 {
        self.0.iter().filter(|of| is_it(**of)).count() as u64
    }
}

/// Takes what is read, and goes on after each fault.
struct Collect<'a> {
    report: &'a mut Report,
    buckets: &'a mut Buckets,
    geometry: Geometry,
    extents: Vec<Key>,
    /// What damaged leaves have that is newer than the damage.
    newer: Vec<Key>,
}

impl Visitor for Collect<'_> {
    fn fault(&mut self, fault: &Fault) -> ControlFlow<()> {
        self.report.add_fault(fault);
        ControlFlow::Continue(())
    }

    fn node(&mut self, at: &NodePlace, node: &Node<'_>) {
        self.report.totals.nodes += 1;
        if let Some(pointer) = at.key.cached_at() {
            self.buckets.take(self.geometry.bucket_of(pointer.sector()), Use::Node, self.report);
        }
        if at.level == 0 {
            return;
        }
        for bset in node.sets() {
            let keys: Vec<Key> = bset.keys().map_while(Result::ok).collect();
            let unordered = keys.windows(2).find(|pair| pair[0].position() > pair[1].position());
            if let Some(pair) = unordered {
                let (place, before, found) = (*at, pair[0], pair[1]);
                self.report.add(Finding::ChildOrder { place, before, found });
            }
        }
    }

    fn extent(&mut self, key: Key) {
        self.extents.push(key);
    }

    fn newer_than_damage(&mut self, key: Key) {
        self.newer.push(key);
    }
}

/// How often the bucket of a key was reused since the key was made.
fn behind(loaded: &Loaded, geometry: &Geometry, key: &Key) -> Option<u8> {
    let pointer = key.cached_at()?;
    let bucket = loaded.buckets.get(geometry.bucket_of(pointer.sector()) as usize)?;
    match bucket.generation.age_of(pointer.generation()) {
        Age::Stale(behind) => Some(behind),
        Age::Current | Age::Newer => None,
    }
}

/// Finds keys that are older than the kernel tolerates.
fn check_ages(loaded: &Loaded, geometry: &Geometry, tree: &[Key], report: &mut Report) {
    for key in tree.iter().filter(|key| !key.is_dirty()) {
        if let Some(behind) = behind(loaded, geometry, key).filter(|behind| *behind > STALE_MAX) {
            report.add(Finding::TooStale { key: *key, behind });
        }
    }
}

/// Finds dirty extents whose buckets were reused, and that nothing newer hides.
fn check_lost(loaded: &Loaded, geometry: &Geometry, extents: &[Key], report: &mut Report) {
    for key in extents.iter().filter(|key| key.is_dirty()) {
        if let Some(behind) = behind(loaded, geometry, key) {
            report.add(Finding::StaleDirty { key: *key, behind });
        }
    }
}

/// Finds sectors that two extents name, and data in buckets of metadata. Answers these extents.
fn check_places(
    geometry: &Geometry,
    extents: &[Key],
    buckets: &mut Buckets,
    report: &mut Report,
) -> Vec<Key> {
    let mut in_doubt = Vec::new();
    let sector = |key: &Key| key.cached_at().map_or(0, |pointer| pointer.sector());
    let mut order: Vec<u32> = (0..extents.len() as u32).collect();
    order.sort_unstable_by_key(|index| sector(&extents[*index as usize]));
    let mut before: Option<&Key> = None;
    for key in order.iter().map(|index| &extents[*index as usize]) {
        if !buckets.take(geometry.bucket_of(sector(key)), Use::Data, report) {
            in_doubt.push(*key);
        }
        let overlaps = |before: &&Key| sector(before) + before.sectors() > sector(key);
        if let Some(before) = before.filter(overlaps) {
            report.add(Finding::Shared { first: *before, second: *key });
            in_doubt.extend([*before, *key]);
        }
        let reach = |key: &Key| sector(key) + key.sectors();
        before = before.filter(|before| reach(before) > reach(key)).or(Some(key));
    }
    in_doubt
}

fn count_volumes(loaded: &Loaded, extents: &[Key], report: &mut Report) {
    let live = loaded.volumes.iter().enumerate().filter(|(_, entry)| !entry.is_empty());
    let volume = |(inode, entry): (usize, &UuidEntry)| Volume {
        entry: *entry,
        inode: inode as u32,
        ..Volume::default()
    };
    report.volumes = live.map(volume).collect();
    for group in extents.chunk_by(|a, b| a.inode() == b.inode()) {
        let inode = group[0].inode();
        let known = report.volumes.binary_search_by_key(&inode, |volume| volume.inode);
        let index = known.unwrap_or_else(|index| {
            report.volumes.insert(index, Volume { inode, ..Volume::default() });
            index
        });
        let volume = &mut report.volumes[index];
        volume.extents = group.len() as u64;
        volume.sectors = group.iter().map(Key::sectors).sum();
        let dirty = group.iter().filter(|key| key.is_dirty());
        volume.dirty_sectors = dirty.map(Key::sectors).sum();
        if volume.entry.is_flash_only() {
            let size = 0..volume.entry.sectors;
            check_bounds(group, &size, report);
        }
    }
    report.totals.extents = extents.len() as u64;
    let live = report.volumes.iter().filter(|volume| volume.entry.is_live());
    report.totals.dirty_sectors = live.map(|volume| volume.dirty_sectors).sum();
}

/// Finds extents of no volume, and volumes that are there twice.
fn check_volumes(report: &mut Report) {
    let volumes = report.volumes.clone();
    for (index, volume) in volumes.iter().enumerate() {
        if volume.entry.is_empty() {
            report.add(Finding::NoVolume(*volume));
        }
        let same = |other: &&Volume| other.entry.uuid == volume.entry.uuid;
        if volume.entry.is_live()
            && let Some(other) = volumes[..index].iter().find(same)
        {
            let (uuid, inodes) = (volume.entry.uuid, (other.inode, volume.inode));
            report.add(Finding::SameUuid { uuid, inodes });
        }
    }
}

fn check_backing(
    superblock: &CacheSuperblock,
    backing: &Backing,
    extents: &[Key],
    report: &mut Report,
) {
    let device = match &backing.superblock {
        Ok(device) => device,
        Err(error) => return report.add(Finding::Backing(error.clone())),
    };
    let (uuid, set_uuid) = (device.uuid(), device.set_uuid());
    if set_uuid != superblock.set_uuid() {
        let expected = superblock.set_uuid();
        return report.add(Finding::OtherSet { uuid, found: set_uuid, expected });
    }
    let is_it = |volume: &&Volume| volume.entry.uuid == uuid && volume.entry.is_live();
    let Some(volume) = report.volumes.iter().find(is_it).copied() else {
        // A device that lacks nothing gets a volume when it is next used.
        return match device.state() {
            BackingState::None | BackingState::Clean => (),
            BackingState::Dirty | BackingState::Stale => report.add(Finding::Unknown { uuid }),
        };
    };
    let is_its = |key: &Key| key.inode() == volume.inode;
    let first = extents.partition_point(|key| key.inode() < volume.inode);
    let count = extents[first..].partition_point(is_its);
    let size = device.data_offset()..backing.device_sectors;
    check_bounds(&extents[first..first + count], &size, report);
    match device.state() {
        BackingState::Stale => report.add(Finding::Stale { uuid, volume }),
        BackingState::Clean if volume.dirty_sectors > 0 => {
            report.add(Finding::CleanState { uuid, volume });
        }
        BackingState::None if volume.dirty_sectors > 0 => {
            report.add(Finding::NoneState { uuid, volume });
        }
        _ => (),
    }
}

/// Finds extents beyond the end of their volume, or before its beginning.
fn check_bounds(extents: &[Key], size: &Range<u64>, report: &mut Report) {
    for key in extents.iter().filter(|key| is_beyond(key, size)) {
        report.add(Finding::Beyond { key: *key, size: size.clone() });
    }
}

#[cfg(test)]
mod tests;

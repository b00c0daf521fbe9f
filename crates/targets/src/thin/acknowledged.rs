//! What the pool has acknowledged and not committed, in the crash log: a killed process loses the
//! mappings of these blocks, not their data.
//!
//! The log's state is a number for the superblock (`Working::state`). A record says what became of
//! consecutive blocks of one device: mapped to consecutive data blocks, or holes.
//!
//! A1. A record is appended when the volume map changes, under the lock of the shard: after the
//!     data was written (T4), before the answer. So the records of a block are in the order of its
//!     changes. The volume is marked as changed before it (N1 in `commit`).
//! A2. A commit seals the log before it freezes. So it makes every sealed record durable: the
//!     change of a record was pending when its shard was frozen, or the commit before took it. What
//!     the commit takes of later records is durable too, and a replay makes it a second time, in
//!     order: only the last record of a block counts, and what the metadata has already is left
//!     out.
//! A3. The right to make a change includes room for its record (S2 in `stock`). A change that is
//!     visible has its record: overwrites of a mapped block are acknowledged without one.
//! A4. A data block of a record is free in the metadata that the record extends, or has this very
//!     mapping there. A block that a change freed is taken again only after a commit of the change
//!     (T3), and then no replay begins before that commit. If a data block is in use otherwise,
//!     somebody else used the pool in between.
//! A5. A device of a record exists in the metadata that the record extends. A volume that is
//!     deleted has no change that is not durable and gets none, and a new one is written after the
//!     commit that made it: its records are in a half that extends this commit, or a later one.
//! A6. A mapping is as old as its record says, so that a block is shared if a snapshot was taken
//!     after the change (T5). If that snapshot's commit did not land, a change after it is as old
//!     as the metadata is.
//! A7. The data device is flushed before the log is read (T1), and a replay commits before any
//!     volume serves. A kill during it finds the state of before, and replays again, or that of
//!     after, which includes all records. No data block is handed out before.
//! A8. If a commit fails, or a failed flush of the data device may have dropped the data of a
//!     change that is not durable, nothing is replayed: the clients are told (L6 in `losses`). The
//!     log has the failure counts beneath, of before that of L1, so that a kill before the pool
//!     compares hides nothing.
//! A9. Only a pool that may change its metadata replays a log. A read-only pool, or one that needs
//!     a check, shows the metadata as it is, says so, and leaves the records for one that may. That
//!     is not a pool whose volumes are in use: their clients have seen the older state.

use std::collections::BTreeMap;
use std::ops::Range;

use cairn_block::sync::Mutex;
use cairn_block::sync::atomic::{AtomicBool, Ordering};
use cairn_block::{
    Base, ConfigError, ConfigKind, CrashLog, Ctor, Env, Left, LogPlace, Record, Sector,
    failures_at_opening, failures_beneath,
};
use cairn_format::bcache::crc64;
use cairn_format::thin::{DataBlock, DeviceId, Mapping};

use super::config::PoolConfig;
use super::metadata::MetadataError;
use super::pool::Pool;
use super::recover::{ThinPool, config_error};

/// In a record, in place of a mapping. No mapping packs to this.
const HOLE: u64 = u64::MAX;
/// Bits of a device's id in a record.
const ID_BITS: u32 = 24;
/// The state of a blank metadata device.
const BLANK: u64 = u64::MAX - 1;

/// What became of consecutive blocks of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Changed {
    device: DeviceId,
    block: u64,
    count: u64,
    /// Of the first block; those after it are mapped to the data blocks after it.
    mapping: Option<Mapping>,
}

impl Changed {
    /// Blocks from `block` on are mapped, the first one so.
    pub fn mapped(device: DeviceId, block: u64, first: Mapping, count: u64) -> Changed {
        Changed { device, block, count, mapping: Some(first) }
    }

    /// These blocks are holes.
    pub fn unmapped(device: DeviceId, blocks: Range<u64>) -> Changed {
        let count = blocks.end - blocks.start;
        Changed { device, block: blocks.start, count, mapping: None }
    }

    pub fn record(&self) -> Record {
        let mapping = self.mapping.map_or(HOLE, Mapping::pack);
        [self.device.key() | self.count << ID_BITS, self.block, mapping]
    }

    fn of_record([which, block, mapping]: Record) -> Changed {
        let id = which & ((1 << ID_BITS) - 1);
        let device = DeviceId::new(id).expect("an id has so many bits");
        let mapping = (mapping != HOLE).then(|| Mapping::unpack(mapping));
        Changed { device, block, count: which >> ID_BITS, mapping }
    }

    /// Block by block; none is newer than the metadata (A6).
    fn changes(self, time: u32) -> impl Iterator<Item = (u64, Option<Mapping>)> {
        (0..self.count).map(move |at| {
            let mapping = self.mapping.map(|first| Mapping {
                block: DataBlock(first.block.0 + at),
                time: first.time.min(time),
            });
            (self.block + at, mapping)
        })
    }
}

/// The log of a pool.
pub(super) struct Log {
    log: CrashLog,
    /// Stands for the data device and its blocks.
    owner: u64,
}

impl Log {
    /// Records are on top of this state of the metadata, in which everything is that the clients
    /// have, and of these failures of the data device.
    fn begin(&mut self, state: u64, failures: u64) {
        self.log.begin(&Base { owner: self.owner, state, failures });
    }
}

/// See the module's description. Without a place for a log there is room for all records, and none
/// is kept.
#[derive(Default)]
pub(super) struct Acknowledged {
    log: Mutex<Option<Log>>,
    is_kept: AtomicBool,
    /// Half of the room is in use: a commit is due.
    is_filling: AtomicBool,
    /// The log has records that this pool leaves there (A9).
    leaves: AtomicBool,
}

impl Acknowledged {
    /// A log in this memory, on top of a state.
    #[cfg(all(test, shuttle))]
    pub fn in_memory(
        memory: std::sync::Arc<dyn cairn_block::CrashMemory>,
        state: u64,
    ) -> Acknowledged {
        let (log, _) = CrashLog::open(memory, &Base { owner: 0, state, failures: 0 });
        let mut log = Log { log, owner: 0 };
        log.begin(state, 0);
        let acknowledged = Acknowledged::default();
        acknowledged.put(log);
        acknowledged
    }

    /// Does something with the log, if there is one. Without one no lock is taken.
    fn with<R>(&self, act: impl FnOnce(&mut CrashLog) -> R) -> Option<R> {
        if !self.is_kept() {
            return None;
        }
        self.log.lock().as_mut().map(|log| act(&mut log.log))
    }

    /// True if there is a log. That changes only while no change can be made.
    pub fn is_kept(&self) -> bool {
        self.is_kept.load(Ordering::Acquire)
    }

    fn put(&self, log: Log) {
        *self.log.lock() = Some(log);
        self.is_kept.store(true, Ordering::Release);
    }

    fn take(&self) -> Option<Log> {
        self.is_kept.store(false, Ordering::Release);
        self.log.lock().take()
    }

    /// Makes room for up to so many records; answers for how many.
    pub fn reserve(&self, most: u64) -> u64 {
        self.with(|log| log.reserve_some(most as usize) as u64).unwrap_or(most)
    }

    /// So many changes will not be made.
    pub fn cancel(&self, count: u64) {
        self.with(|log| log.cancel_some(count as usize));
    }

    /// True if there is room for a record.
    pub fn has_room(&self) -> bool {
        let has_room = self.reserve(1) > 0;
        self.cancel(u64::from(has_room));
        has_room
    }

    /// Appends a record of changes that had room for one each. True if that makes a commit due.
    pub fn append(&self, record: Record, changes: u64) -> bool {
        let is_due = self.with(|log| {
            log.append(record);
            log.cancel_some(changes as usize - 1);
            log.is_half_full() && !self.is_filling.swap(true, Ordering::Relaxed)
        });
        is_due.unwrap_or_default()
    }

    /// True if a commit is due, since there is not much room left.
    pub fn is_filling(&self) -> bool {
        self.is_filling.load(Ordering::Relaxed)
    }

    /// A commit is about to freeze the changes (A2).
    pub fn seal(&self) {
        self.with(|log| {
            self.is_filling.store(false, Ordering::Relaxed);
            log.seal(None);
        });
    }

    /// The commit will leave this state.
    pub fn name_state(&self, state: u64) {
        self.with(|log| log.name_state(state));
    }

    /// The commit is durable.
    pub fn committed(&self) {
        self.with(CrashLog::empty_sealed);
    }

    /// The commit had nothing to make durable: the state is as it was.
    pub fn unchanged(&self, state: u64) {
        self.name_state(state);
        self.committed();
    }

    /// What is not durable is lost (A8). [`Self::begin`] follows.
    pub fn lose(&self) {
        self.with(CrashLog::lose);
    }

    /// Records count again: see [`Log::begin`].
    pub fn begin(&self, state: u64, failures: u64) {
        let mut log = self.log.lock();
        self.is_filling.store(false, Ordering::Relaxed);
        if let Some(log) = &mut *log {
            log.begin(state, failures);
        }
    }

    /// Failures of the data device so far have lost nothing that is recorded.
    pub fn survived(&self, failures: u64) {
        self.with(|log| log.survived(failures));
    }

    /// Clients were told of all losses.
    pub fn told(&self) {
        self.with(CrashLog::told);
    }

    /// True if the log has records that this pool leaves there (A9).
    pub fn leaves_records(&self) -> bool {
        self.leaves.load(Ordering::Acquire)
    }
}

impl Pool {
    /// Records so many changes, under the lock of their shard (A1).
    pub fn acknowledge(&self, changed: &Changed, changes: u64) {
        if changes > 0 && self.metadata.acknowledged().append(changed.record(), changes) {
            self.changed.notify(usize::MAX);
        }
    }
}

/// Where the log of a pool is.
pub(super) struct Place {
    log: LogPlace,
    /// Stands for the data device and its blocks.
    owner: u64,
}

impl Place {
    /// None if there is none: see [`cairn_block::Registry::crash_log_of`].
    ///
    /// # Errors
    /// Another process has the log.
    pub fn of(ctor: &Ctor<'_>, config: &PoolConfig) -> Result<Option<Place>, ConfigError> {
        let (at, data) = ((&config.metadata.disk, Sector(0)), &config.data.disk);
        let log = ctor.registry.crash_log_of("thin", at, &[data], config.options.read_only)?;
        let Some(log) = log else { return Ok(None) };
        let data = ctor.registry.lasting_name_of(data, Sector(0)).unwrap_or_default();
        let owner = crc64(format!("{data} {}", config.block_sectors).as_bytes());
        Ok(Some(Place { log, owner }))
    }
}

impl ThinPool {
    /// The log of a pool that may change its metadata, with nothing in it: what a killed process
    /// had acknowledged is durable. It is out of use until [`Self::keep_log`].
    ///
    /// # Errors
    /// What is there does not fit the pool, or cannot be made durable.
    pub(super) async fn take_log(
        &self,
        env: &Env,
        pool: &Pool,
    ) -> Result<Option<Log>, ConfigError> {
        let own = pool.metadata.acknowledged().take();
        if let Some(mut own) = own {
            // The pool was suspended: everything is durable. The place may be another by now.
            own.begin(pool.metadata.state().await, failures_beneath(pool.data_disk().as_ref()));
        }
        let data = &self.config.data;
        if self.crash_log.is_some() {
            let failures = data.disk.failures();
            let flushed = env.make_durable(&data.disk).await;
            if let (Err(error), true) = (flushed, data.disk.failures() == failures) {
                let flush = ConfigError::new(ConfigKind::System, &data.argument, "flush");
                return Err(flush.with_source(error));
            }
        }
        let state = pool.metadata.state().await;
        let Some((mut own, left)) = self.find_log(state)? else { return Ok(None) };
        if let Left::Records(records) = left
            && !records.is_empty()
        {
            self.replay(env, pool, &mut own.log, &records).await?;
        }
        own.begin(pool.metadata.state().await, failures_beneath(data.disk.as_ref()));
        Ok(Some(own))
    }

    /// Puts the log to use. No right to make a change is granted (S2 in `stock`).
    pub(super) async fn keep_log(&self, pool: &Pool, log: Option<Log>) {
        let Some(mut log) = log else { return };
        log.begin(pool.metadata.state().await, failures_beneath(pool.data_disk().as_ref()));
        self.put(pool, log);
    }

    /// Keeps the log in the pool, and tells of a loss. Nothing fails after it.
    fn put(&self, pool: &Pool, mut log: Log) {
        let is_lost = log.log.take_loss();
        pool.metadata.acknowledged().put(log);
        if is_lost {
            tracing::error!(
                "{}: acknowledged writes of a server that was killed may be lost",
                pool.name()
            );
            pool.owe_before(pool.metadata.devices().into_iter().map(|(id, _)| id));
        }
    }

    /// Leaves the records of a pool that takes no changes as they are (A9).
    ///
    /// # Errors
    /// What is there does not fit the pool.
    pub(super) async fn leave_log(&self, pool: &Pool) -> Result<(), ConfigError> {
        let acknowledged = pool.metadata.acknowledged();
        if acknowledged.is_kept() {
            return Ok(());
        }
        let state = pool.metadata.state().await;
        let Some((mut own, left)) = self.find_log(state)? else { return Ok(()) };
        match left {
            Left::Records(records) if !records.is_empty() => {
                acknowledged.leaves.store(true, Ordering::Release);
                tracing::warn!(
                    "{}: a server was killed: {} records of acknowledged writes stay in the crash \
                     log, and do not show, until a pool that is writable starts",
                    pool.name(),
                    records.len()
                );
            }
            _ => own.begin(state, failures_beneath(pool.data_disk().as_ref())),
        }
        self.put(pool, own);
        Ok(())
    }

    /// True if this table would change metadata that lacks the records of the log: the pool has to
    /// be opened again.
    ///
    /// # Errors
    /// It cannot be, since volumes are in use.
    pub(super) fn must_replay(&self, pool: &Pool) -> Result<bool, ConfigError> {
        let changes = !self.config.options.read_only && !pool.metadata.facts().needs_check;
        if !changes || !pool.metadata.acknowledged().leaves_records() {
            return Ok(false);
        }
        match pool.open_volumes().iter().any(|volume| volume.is_used()) {
            true => Err(self.busy(
                "volumes in use, and acknowledged writes in the crash log that they do not show",
                "no volume in use when it becomes writable",
            )),
            false => Ok(true),
        }
    }

    /// Refuses a log of other metadata than the blank one, which is about to be formatted.
    ///
    /// # Errors
    /// There is one.
    pub(super) fn refuse_log_of_another(&self) -> Result<(), ConfigError> {
        self.find_log(BLANK).map(drop)
    }

    /// The log of metadata in this state, with what a killed process left in it.
    fn find_log(&self, state: u64) -> Result<Option<(Log, Left)>, ConfigError> {
        let Some(place) = self.crash_log.as_ref() else { return Ok(None) };
        let &Place { log: LogPlace { ref memory, is_kept }, owner } = place;
        let failures = failures_at_opening(self.config.data.disk.as_ref());
        let base = Base { owner, state, failures };
        let (log, left) = CrashLog::open(memory.clone(), &base);
        let Left::Foreign(states) = &left else {
            return Ok(is_kept.then_some((Log { log, owner }, left)));
        };
        let name = |state: u64| format!("{state:016x}");
        let states: Vec<String> = states.iter().copied().map(name).collect();
        let expected = if state == BLANK { "none".to_owned() } else { name(state) };
        Err(self.misfit(format!(
            "found acknowledged writes of a killed server on top of state {}, expected {expected} \
             as on the device: it was used by something else, or with another data device; \
             `cairn serve --discard-crash-log` gives these writes up",
            states.join(" and ")
        )))
    }

    fn misfit(&self, detail: String) -> ConfigError {
        let detail = format!("crash log: {detail}");
        ConfigError::new(ConfigKind::Damaged, &self.config.metadata.argument, detail)
    }

    /// Makes durable what a killed process had acknowledged (A7).
    async fn replay(
        &self,
        env: &Env,
        pool: &Pool,
        log: &mut CrashLog,
        records: &[Record],
    ) -> Result<(), ConfigError> {
        let metadata = &pool.metadata;
        let of = |error: MetadataError| config_error(&self.config.metadata, &error);
        let mut missing = Vec::new();
        for (id, changes) in settle(records, metadata.facts().time) {
            if metadata.details(id).is_err() {
                return Err(self.misfit(format!("found a record of device {id}, which is none")));
            }
            let changes = metadata.missing(env, id, changes).await.map_err(of)?;
            for DataBlock(block) in changes.iter().filter_map(|(_, it)| it.map(|it| it.block)) {
                if !metadata.allocator().take_block(DataBlock(block)) {
                    let what = "expected a free one (A4)";
                    return Err(self.misfit(format!("found data block {block} in use, {what}")));
                }
            }
            missing.push((id, changes));
        }
        let mut working = metadata.working().await;
        for (id, changes) in &missing {
            working.apply(env, *id, changes).await.map_err(|error| of(error.into()))?;
        }
        let committed = working.commit_naming(env, Some(|state| log.include(state))).await;
        let freed = committed.map_err(|error| of(error.into()))?;
        metadata.note(&working);
        freed.into_iter().for_each(|run| metadata.allocator().release(run));
        tracing::warn!(
            "{}: a server was killed: {} records of acknowledged writes are in the metadata \
             again, and durable",
            pool.name(),
            records.len()
        );
        Ok(())
    }
}

/// The last change of each block, by devices and in order.
fn settle(records: &[Record], time: u32) -> BTreeMap<DeviceId, Vec<(u64, Option<Mapping>)>> {
    let mut settled: BTreeMap<DeviceId, Vec<_>> = BTreeMap::new();
    for &record in records {
        let changed = Changed::of_record(record);
        settled.entry(changed.device).or_default().extend(changed.changes(time));
    }
    for changes in settled.values_mut() {
        // Stable: the changes of one block stay in their order.
        changes.sort_by_key(|(block, _)| *block);
        changes.dedup_by(|change, last| {
            let is_same = last.0 == change.0;
            if is_same {
                last.1 = change.1;
            }
            is_same
        });
    }
    settled
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(id: u64) -> DeviceId {
        DeviceId::new(id).expect("it is small")
    }

    fn mapping(block: u64, time: u32) -> Mapping {
        Mapping { block: DataBlock(block), time }
    }

    #[test]
    fn records_hold_every_device_block_and_mapping() {
        let last = Mapping { block: DataBlock((1 << 40) - 2), time: (1 << 24) - 1 };
        for changed in [
            Changed::mapped(DeviceId::MAX, 1 << 50, last, 64),
            Changed::unmapped(id(0), 7..1 << 39),
        ] {
            assert_eq!(Changed::of_record(changed.record()), changed);
        }
    }

    #[test]
    fn the_last_record_of_a_block_counts_and_is_no_newer_than_the_metadata() {
        let records = [
            Changed::mapped(id(1), 4, mapping(10, 2), 3),
            Changed::mapped(id(0), 4, mapping(20, 3), 1),
            Changed::unmapped(id(1), 3..5),
            Changed::mapped(id(1), 4, mapping(30, 4), 1),
        ];
        let settled = settle(&records.map(|changed| changed.record()), 3);
        let of_one = vec![
            (3, None),
            (4, Some(mapping(30, 3))),
            (5, Some(mapping(11, 2))),
            (6, Some(mapping(12, 2))),
        ];
        let expected = [(id(0), vec![(4, Some(mapping(20, 3)))]), (id(1), of_one)];
        assert_eq!(settled, BTreeMap::from(expected));
    }
}

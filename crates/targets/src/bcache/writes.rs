//! Writes of clients: from their verdict to the key in the tree.
//!
//! # Order of a write into the cache
//! 1. Before the first write of a life a session begins; before the first dirty data the superblock
//!    of the backing device says `dirty`, durably (R11); before the first dirty data of a zone the
//!    map of dirty zones names it, durably (`zones`). Writes wait for that.
//! 2. A place in an open bucket; the bucket counts the write.
//! 3. The data goes to the cache device.
//! 4. The key enters the tree, the keys that wait for the journal (N1), and the crash log
//!    (`set::acknowledged`), in which 2 has reserved room. Reads see it from then on. A FUA write
//!    waits for the group commit with its key; other writes complete.
//!
//! # Order of a write in place (`set::overwrites`)
//! Over dirty data whose key is durable: the data goes to the place of that, with FUA if the write
//! has it. There are no further steps.
//!
//! # Order of a write around the cache
//! 1. As above, without the state.
//! 2. Where the cache has clean data, or the device may have keys to such data (N5), a hole enters
//!    the tree and the journal, durably. The write is mapped again then. So no power cut leaves the
//!    old data of the cache in front of the new data of the backing device.
//! 3. The data goes to the backing device, with FUA if the write has it.
//!
//! While clients flush often, the write is held after step 3 until a flush has made it durable, or
//! takes the way into the cache (`bypass::restraint`).
//! While the backing device is about to leave its set, what is dirty is written back before 2
//! (`writeback::ahead`).
//!
//! So a read finds data only after it was written, and a key is never durable before its data: a
//! flush begins after step 4 has added the key (R3, R14).

use cairn_block::sync::atomic::Ordering;
use cairn_block::{
    EndIo, Env, Flags, IoError, IoResult, Op, Request, RequestId, Sector, SectorCount, Verdict,
    mutants,
};
use cairn_format::bcache::{BackingState, CacheMode, Key, Pointer};
use futures_util::future::join;

use super::btree::Span;
use super::bypass::{Bypass, DEEP, Direction};
use super::canary::{Bug, planted};
use super::config::Devices;
use super::coverage::{self, Path};
use super::flushing::Forwarded;
use super::route::{Inputs, Overlap, Route, route};
use super::set::{Core, Set};
use super::status::Count;
use super::volume::Bcache;
use super::word::{Class, Waited, Word};
use crate::epochs::Epoch;
use crate::group_commit::Waiter;

/// Where the head of a write goes.
enum Plan {
    /// To the cache, at this sector. It entered the epoch.
    Cache { sector: u64, count: u64, epoch: Epoch },
    /// To the cache, in place. It entered the epoch.
    InPlace { sector: u64, count: u64, epoch: Epoch },
    /// To the backing device; the failures of that which were known, and the number of a fill.
    Around { class: Class, known: u32, fill: u64 },
    /// Nowhere yet: a hole was laid for it, or holes for others.
    Ordered(Option<Span>),
    /// Nowhere yet: what is dirty there is written back first.
    Ahead,
    /// It is a discard, or leaves a hole that reads as zeros.
    Remove,
    /// It is a large write-zeroes over dirty data.
    Zero,
    /// Nowhere yet: the volume is not ready for it.
    Begin,
    /// Nowhere yet: the map of dirty zones lacks its zones. It starts the task, or not.
    Mark { starts: bool },
    /// Nowhere yet: leaves are read first. It starts the task, or not.
    Read { starts: bool },
    /// Nowhere yet: no bucket is free.
    Wait,
    /// To the mapped device, until the next table.
    HandBack,
    /// The set is in error.
    Degraded,
}

/// For what a volume is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(super) enum Ready {
    /// For reads.
    Read,
    /// For changes of the set.
    Change,
    /// For dirty data.
    Dirty,
}

/// The plan of a write, some of whose leaves are absent. `is_zeroed` if a task may zero the backing
/// device in its place: it looks at some leaves after the other, of which there may be many.
fn plan_without_leaves(
    set: &mut Set,
    request: &Request,
    span: &Span,
    is_zeroed: bool,
) -> Option<Plan> {
    let absent = set.tree.absent_in(span);
    match absent.is_empty() {
        true => None,
        false if is_zeroed => Some(Plan::Zero),
        false => Some(Plan::Read { starts: set.wanted.add(*span, request.id()) }),
    }
}

/// The key to data that a client wrote to this place.
fn dirty_key(span: &Span, pointer: Pointer) -> Key {
    Key::new(span.inode, span.end, span.end - span.start).with_dirty(true).at(pointer)
}

impl Bcache {
    /// True once step 1 is done. It changes under the lock of the set.
    pub(super) fn is_ready(&self, ready: Ready) -> bool {
        self.ready.load(Ordering::Relaxed) >= ready as u8
    }

    /// Parks a request until the volume is ready for more.
    fn park(&self, request: &Request, ready: Ready) -> Plan {
        self.parked.lock().push(request.id());
        self.wanted.fetch_max(ready as u8, Ordering::Relaxed);
        Plan::Begin
    }

    /// Parks a write until the map of dirty zones has its zones (Y1).
    fn park_for_mark(&self, request: &Request, span: &Span) -> Plan {
        let zones = self.zones.as_ref().expect("without a map no write waits for it");
        Plan::Mark { starts: zones.park(span, request.id()) }
    }

    fn plan_write(&self, env: &Env, request: &Request, span: Span) -> Plan {
        let skips = request.op != Op::Discard && self.skips(env, request);
        let core = self.core.as_ref().expect("a volume with a cache is written");
        let mut guard = core.lock();
        let Some(set) = guard.as_mut().filter(|_| !core.is_broken()) else {
            return Plan::Degraded;
        };
        if !self.is_ready(Ready::Change) {
            return self.park(request, Ready::Change);
        }
        let is_flash = self.config.devices.backing().is_none();
        let is_large_zeroes = self.is_large_zeroes(request);
        let leaves_hole = is_large_zeroes && is_flash && !request.flags.contains(Flags::NO_UNMAP);
        if request.op == Op::Discard || leaves_hole {
            return Plan::Remove;
        }
        if let Some(plan) = plan_without_leaves(set, request, &span, is_large_zeroes && !is_flash) {
            return plan;
        }
        let overlap = set.overlap(&span);
        let (mode, in_use) = (self.mode(), set.buckets.in_use_percent());
        let cutoffs = self.bypass.as_ref().map(Bypass::cutoffs).unwrap_or_default();
        if let Some(bypass) = self.bypass.as_ref().filter(|_| request.is_fua()) {
            bypass.restraint.flushed(env.now());
        }
        let is_sync = request.flags.intersects(Flags::FUA | Flags::META);
        let joins_stripe = mode == CacheMode::Writeback
            && self.stripes.as_ref().is_some_and(|it| it.are_joined(set, &span));
        let is_marked = self.is_zone_marked(&span);
        let is_refused = || self.zones.as_ref().is_some_and(|zones| zones.refuse(env.now()));
        let inputs = Inputs {
            mode,
            overlap,
            in_use,
            cutoffs,
            is_sync,
            skips,
            joins_stripe,
            is_large_zeroes,
            is_flash,
            never_dirty: self.is_leaving.load(Ordering::Relaxed) || !is_marked && is_refused(),
        };
        match self.restrained(env, set, &inputs, request) {
            (Route::Around, class) => {
                set.changes.fills.touch(&span);
                let fill = match inputs.bypasses() {
                    true => {
                        let sectors = span.end - span.start;
                        self.counters.add(env, Count::BypassedSectors as usize, sectors);
                        0
                    }
                    false => self.begin_through(set, request.op, span),
                };
                Plan::Around { class, known: self.traffic.begin(span), fill }
            }
            (Route::Ordered, _) => {
                set.lay_hole(span, core.commit_at(env));
                Plan::Ordered(Some(span))
            }
            (Route::Wait, _) => Plan::Ordered(None),
            (Route::Zero, _) => Plan::Zero,
            (Route::Ahead, _) => Plan::Ahead,
            (Route::Cache, _) if !self.is_ready(Ready::Dirty) => self.park(request, Ready::Dirty),
            (Route::Cache, _) if !is_marked => self.park_for_mark(request, &span),
            (Route::Cache, _) => self.plan_cached(env, core, set, request, span, overlap),
        }
    }

    /// Where a write goes, and its class if it goes around the cache (R16).
    fn restrained(
        &self,
        env: &Env,
        set: &Set,
        inputs: &Inputs,
        request: &Request,
    ) -> (Route, Class) {
        let (route, now) = (route(inputs), env.now());
        coverage::take_route(inputs, route);
        let goes_around = matches!(route, Route::Around | Route::Ordered);
        let is_volatile = inputs.mode == CacheMode::Writeback && !request.is_fua();
        let is_restrained = self.config.flushing.is_restrained;
        let bypass = self.bypass.as_ref().filter(|_| is_restrained && goes_around && is_volatile);
        let Some(bypass) = bypass.filter(|bypass| bypass.restraint.is_on(now)) else {
            return (route, Class::Around);
        };
        let takes = || {
            let geometry = set.superblock.geometry();
            let cache_sectors = geometry.buckets() * geometry.bucket_sectors();
            bypass.restraint.takes(now, request.range.count.0, cache_sectors)
        };
        let never = inputs.is_large_zeroes || inputs.never_dirty;
        let is_below = inputs.in_use <= inputs.cutoffs.plain && !never;
        match self.traffic.depth() < DEEP && is_below && takes() {
            true => {
                coverage::take(Path::Restrained);
                (Route::Cache, Class::Around)
            }
            false => (route, Class::Held),
        }
    }

    /// The plan of a write that becomes dirty data. In place it goes only over dirty data, so that
    /// others need no search for that.
    fn plan_cached(
        &self,
        env: &Env,
        core: &Core,
        set: &mut Set,
        request: &Request,
        span: Span,
        overlap: Overlap,
    ) -> Plan {
        set.changes.fills.touch(&span);
        let over_dirty = overlap == Overlap::Dirty;
        let in_place = over_dirty.then(|| core.begin_overwrite(env, set, &span)).flatten();
        if let Some((pointer, count, epoch)) = in_place {
            core.requested(env, set, count);
            coverage::take(Path::InPlace);
            return Plan::InPlace { sector: pointer.sector(), count, epoch };
        }
        if !set.acknowledged.reserve() {
            coverage::take(Path::FullLog);
            return Plan::Ordered(None);
        }
        let place = set.place(span, request.stream());
        if place.is_none() {
            set.acknowledged.cancel();
        }
        match place {
            Some((pointer, count)) => {
                core.requested(env, set, count);
                set.changes.arrivals.begin(count);
                if planted(Bug::RecordBeforeData) && set.acknowledged.reserve() {
                    let head = Span { end: span.start + count, ..span };
                    set.acknowledged.append(&dirty_key(&head, pointer));
                }
                let epoch = core.writers.enter(env.reactor(), 0);
                Plan::Cache { sector: pointer.sector(), count, epoch }
            }
            None if self.is_handing_back.load(Ordering::Relaxed) => {
                coverage::take(Path::HandBack);
                Plan::HandBack
            }
            None => {
                coverage::take(Path::NoBucket);
                set.changes.waiting.push((self.inode(), request.id()));
                Plan::Wait
            }
        }
    }

    pub(super) fn span_of(&self, request: &Request) -> Span {
        let start = self.first + request.range.start.0;
        Span { inode: self.inode(), start, end: start + request.range.count.0 }
    }

    pub(super) fn map_write<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        if self.read_only || matches!(self.config.devices, Devices::Bare { .. }) {
            return self.refuse_write();
        }
        let span = self.span_of(request);
        match self.plan_write(env, request, span) {
            Plan::Cache { sector, count, epoch } => {
                // Only a commit makes the write durable; its flush covers the data.
                request.flags.remove(Flags::FUA);
                self.to_cache(env, request, (Class::Insert, epoch), sector, count)
            }
            Plan::InPlace { sector, count, epoch } => {
                self.to_cache(env, request, (Class::Overwrite, epoch), sector, count)
            }
            Plan::Around { class, known, fill } => {
                let (epoch, waited) = (Epoch::default(), Waited::default());
                let number = fill << 32 | u64::from(known);
                request.watch(Word { class, epoch, waited, number }.to_word());
                let backing = self.config.devices.backing().expect("flash has no way around");
                Verdict::Remapped { disk: backing.disk.as_ref(), sector: Sector(span.start) }
            }
            Plan::Ordered(hole) => {
                let id = request.id();
                self.spawn(env, async move |volume, env| volume.make_hole(env, hole, id).await);
                Verdict::Queued
            }
            Plan::Ahead => {
                self.wait_for_writeback(env, span, request.id());
                Verdict::Queued
            }
            Plan::Remove => {
                let id = request.id();
                self.spawn(env, async move |volume, env| volume.discard(env, span, id).await);
                Verdict::Queued
            }
            Plan::Zero => {
                let (id, flags) = (request.id(), request.flags);
                self.spawn(env, async move |volume, env| {
                    volume.write_zeroes(env, span, flags, id).await;
                });
                Verdict::Queued
            }
            Plan::Begin => {
                if !self.beginning.swap(true, Ordering::Relaxed) {
                    self.spawn(env, async |volume, env| volume.begin_writing(env).await);
                }
                Verdict::Queued
            }
            Plan::Mark { starts } => {
                if starts {
                    self.spawn(env, async |volume, env| volume.mark_zones(env).await);
                }
                Verdict::Queued
            }
            Plan::Read { starts } => self.wait_for_leaf(env, starts),
            Plan::Wait => {
                self.core.as_ref().expect("it has a cache").changed.notify(usize::MAX);
                Verdict::Queued
            }
            Plan::HandBack => {
                env.hand_back(request.id());
                Verdict::Queued
            }
            Plan::Degraded => self.map_degraded(env, request),
        }
    }

    fn to_cache<'a>(
        &'a self,
        env: &Env,
        request: &mut Request,
        (class, epoch): (Class, Epoch),
        sector: u64,
        count: u64,
    ) -> Verdict<'a> {
        self.counters.add(env, Count::Writes as usize, 1);
        self.counters.add(env, Count::CachedSectors as usize, count);
        request.accept(SectorCount(count));
        let waited = Waited::until_now(env, request);
        request.watch(Word { class, epoch, waited, number: sector }.to_word());
        request.flags.remove(Flags::FAST_ZERO);
        let cache = &self.core.as_ref().expect("it has a cache").cache;
        Verdict::Remapped { disk: cache.disk().as_ref(), sector: Sector(sector) }
    }

    /// Makes the holes durable that were laid, and has the write mapped again that waits for that.
    async fn make_hole(&self, env: &Env, hole: Option<Span>, id: RequestId) {
        let core = self.core.as_ref().expect("it has a cache");
        let result = core.commit(env).await;
        if let Some(hole) = hole {
            core.with(|set| set.changes.ghosts.end_hole(&hole));
        }
        match result {
            Err(error) if !core.is_broken() => env.complete(id, Err(error)),
            // To the backing device, or to what the volume does without its set.
            _ => env.remap(id),
        }
    }

    /// The end of a write around the cache.
    pub(super) fn end_around(
        &self,
        env: &Env,
        request: &mut Request,
        word: Word,
        result: IoResult,
    ) -> EndIo {
        let span = self.span_of(request);
        let is_fua = request.is_fua();
        match request.op {
            Op::Discard => self.traffic.end_undefined(&span),
            _ => self.traffic.end(&span, word.number as u32, is_fua, result),
        }
        self.count_backing(env, result);
        self.go_on_filling(env, request, word.number >> 32, result, is_fua);
        EndIo::Done(result)
    }

    /// The end of a write around the cache that is answered when it is durable.
    pub(super) fn end_held(
        &self,
        env: &Env,
        request: &mut Request,
        word: Word,
        result: IoResult,
    ) -> EndIo {
        if result.is_err() {
            return self.end_around(env, request, word, result);
        }
        coverage::take(Path::HeldWrite);
        let starts = self.traffic.hold(&self.span_of(request), word.number as u32, request.id());
        self.go_on_filling(env, request, word.number >> 32, result, false);
        if starts {
            self.spawn(env, async |volume, env| volume.release_held(env).await);
        }
        EndIo::Held
    }

    /// The end of a write in place.
    pub(super) fn end_overwrite(
        &self,
        env: &Env,
        request: &mut Request,
        word: Word,
        result: IoResult,
    ) -> EndIo {
        self.measure(env, request, Direction::Write, word.waited);
        let core = self.core.as_ref().expect("it has a cache");
        let ended = core.with(|set| {
            let ended = core.end_of_write(set, word.number, result);
            let is_volatile = ended.is_ok() && !request.is_fua();
            let is_counted = is_volatile && !planted(Bug::OverwriteUncounted);
            core.end_overwrite(set, self.inode(), word.number, is_counted);
            ended
        });
        core.overwriters.leave(env.reactor(), word.epoch);
        self.count_cache(env, result);
        EndIo::Done(ended)
    }

    /// Step 4 of a write into the cache.
    pub(super) fn end_insert(
        &self,
        env: &Env,
        request: &mut Request,
        word: Word,
        result: IoResult,
    ) -> EndIo {
        self.measure(env, request, Direction::Write, word.waited);
        let core = self.core.as_ref().expect("it has a cache");
        let span = self.span_of(request);
        let waits = request.is_fua() && !mutants::skips("bcache: wait of a FUA write");
        let (ended, has_news, starts) = {
            let mut guard = core.lock();
            let set = guard.as_mut().expect("the set is open while a request is in flight");
            set.changes.fills.touch(&span);
            let pointer = set.buckets.end_write(word.number);
            set.changes.arrivals.end(span.end - span.start);
            match core.end_of_write(set, word.number, result) {
                Err(error) => {
                    set.acknowledged.cancel();
                    (EndIo::Done(Err(error)), false, false)
                }
                Ok(()) => {
                    let key = dirty_key(&span, pointer);
                    let (change, is_first) = set.insert(&key, core.commit_at(env));
                    let is_log_full = set.acknowledged.append(&key);
                    let was_clean = self.add_dirty(change.dirty) == 0;
                    match waits {
                        false => {
                            set.changes.acknowledge();
                            let starts = is_log_full && set.changes.commits.starts();
                            (EndIo::Done(Ok(())), is_first || was_clean, starts)
                        }
                        true => {
                            set.changes.commits.join(Waiter::Request(request.id()));
                            (EndIo::Held, was_clean, set.changes.commits.starts())
                        }
                    }
                }
            }
        };
        core.writers.leave(env.reactor(), word.epoch);
        core.arrived.notify(usize::MAX);
        self.count_cache(env, result);
        if has_news {
            core.changed.notify(usize::MAX);
        }
        if starts {
            core.start_commit(env);
        }
        ended
    }

    /// Step 1. Requests that waited for it are mapped again, or fail.
    pub(super) async fn begin_writing(&self, env: &Env) {
        let _turn = self.states.lock().await;
        let wanted = self.wanted.load(Ordering::Relaxed);
        let result = self.open_for_writes(env, wanted >= Ready::Dirty as u8).await;
        let core = self.core.as_ref().expect("it has a cache");
        let parked = core.with(|_| {
            self.beginning.store(false, Ordering::Relaxed);
            if result.is_ok() {
                self.ready.fetch_max(wanted, Ordering::Relaxed);
            }
            std::mem::take(&mut *self.parked.lock())
        });
        match result {
            Ok(()) => core.remap_all(env, parked),
            Err(_) if core.is_broken() => core.remap_all(env, parked),
            Err(error) => parked.into_iter().for_each(|id| env.complete(id, Err(error))),
        }
    }

    async fn open_for_writes(&self, env: &Env, for_dirty: bool) -> IoResult {
        let core = self.core.as_ref().expect("it has a cache");
        let began = core.change(env, async |session| {
            session.begin().await?;
            session.with(|set| set.buckets.serve_clients());
            Ok(())
        });
        began.await.map_err(|_| IoError::IO)?;
        core.start_keeper(env);
        match for_dirty {
            true if planted(Bug::DataBeforeState) => {}
            true => self.write_state(env, BackingState::Dirty).await?,
            // If this fails, the next start removes the clean extents, and no more.
            false => drop(self.write_map(env, false).await),
        }
        self.renew_zones(env).await;
        let is_cached = matches!(self.config.devices, Devices::Cached { .. });
        if is_cached && !self.is_writing_back.swap(true, Ordering::Relaxed) {
            self.spawn(env, async |volume, env| volume.write_back(env).await);
        }
        Ok(())
    }

    /// A client's flush: all keys that clients rely on are in durable entries of the journal, and
    /// each device is flushed if a client relies on a write there that is not durable (R1).
    pub(super) fn map_flush<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        let Some(core) = &self.core else { return Verdict::Completed };
        if let Some(bypass) = &self.bypass {
            bypass.restraint.flushed(env.now());
        }
        if self.forwards() {
            let id = request.id();
            self.spawn(env, async move |volume, env| match volume.flush_both(env).await {
                Err(_) if volume.is_broken() => env.remap(id),
                result => env.complete(id, result),
            });
            return Verdict::Queued;
        }
        let starts = {
            let mut guard = core.lock();
            let Some(set) = guard.as_mut() else { return Verdict::Completed };
            if !core.owes(set) {
                return Verdict::Completed;
            }
            set.changes.commits.join(Waiter::Request(request.id()));
            set.changes.commits.starts()
        };
        if starts {
            core.start_commit(env);
        }
        Verdict::Queued
    }

    /// True if the flush of a client that is mapped now reaches the backing device.
    fn forwards(&self) -> bool {
        match self.config.flushing.forwarded {
            Forwarded::Owed => !self.is_traffic_durable() && !planted(Bug::FlushSwallowed),
            Forwarded::Always => self.config.devices.backing().is_some(),
            Forwarded::Never => false,
            Forwarded::OneBit => self.traffic.take_written_since_flush(),
        }
    }

    async fn flush_both(&self, env: &Env) -> IoResult {
        let core = self.core.as_ref().expect("it has a cache");
        let flush = async {
            match self.config.flushing.forwarded {
                Forwarded::Always if self.is_traffic_durable() => {
                    self.flush_backing(env, self.backing_failures()).await
                }
                _ => self.flush_traffic(env).await,
            }
        };
        let flush = mutants::step("bcache: flush of the backing device for clients", (), flush);
        let commit = async {
            match core.with(|set| core.owes(set)) {
                true => core.commit(env).await,
                false => Ok(()),
            }
        };
        let (committed, flushed) = join(commit, flush).await;
        committed.and(flushed)
    }
}

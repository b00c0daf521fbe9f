//! Verdicts: where each read goes. A plan covers the longest head of the request that lies in one
//! place: an extent of the cache, or a hole between extents.

use cairn_block::sync::atomic::Ordering;
use cairn_block::{
    EndIo, Env, Flags, IoError, IoResult, Op, Request, Sector, SectorCount, Verdict,
};
use cairn_format::bcache::Key;

use super::btree::{Found, Span};
use super::bypass::Direction;
use super::config::Devices;
use super::coverage::{self, Path};
use super::route::bypasses;
use super::set::{Core, Set, WriteError};
use super::status::Count;
use super::volume::Bcache;
use super::word::{Class, Waited, Word};
use super::writes::Ready;
use crate::epochs::Epoch;

/// Where the head of a read goes.
enum Plan {
    /// To the cache, at this sector. It entered the epoch.
    Cache { sector: u64, count: u64, epoch: Epoch },
    /// To the backing device; the number of a fill.
    Backing { count: u64, fill: u64 },
    /// Nowhere yet: a leaf is read first. It starts the task, or not.
    Read { starts: bool },
    /// Nowhere: nothing was written there.
    Zeros { count: u64 },
    /// The set is in error.
    Degraded,
    /// The cache may have newer data, or the volume is not open.
    Fail,
}

/// The plan of a read whose head lies in this extent of the cache (H1, H2).
#[inline]
fn hit(env: &Env, core: &Core, set: &Set, key: &Key, want: u64) -> Plan {
    let pointer = key.cached_at().expect("an extent leads somewhere");
    let (sector, count) = (pointer.sector(), want.min(key.sectors()));
    set.buckets.touch(sector);
    core.requested(env, set, count);
    let epoch = core.readers.enter(env.reactor(), 0);
    Plan::Cache { sector, count, epoch }
}

impl Bcache {
    pub(super) fn map_request<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        self.counters.add(env, Count::Requests as usize, 1);
        if let Some(disk) = self.passes_to() {
            return self.pass_through(disk.as_ref(), request);
        }
        if self.is_degraded() {
            return self.map_degraded(env, request);
        }
        match request.op {
            Op::Read => self.map_read(env, request),
            Op::Flush => self.map_flush(env, request),
            Op::Write | Op::WriteZeroes | Op::Discard => self.map_write(env, request),
        }
    }

    /// Nothing is written for clients. The log says so once.
    pub(super) fn refuse_write<'a>(&self) -> Verdict<'a> {
        if !self.read_only && !self.is_told.swap(true, Ordering::Relaxed) {
            let volume = &self.config.volume;
            tracing::warn!(
                "{volume}: a write was refused: this version drains a cache, but writes none"
            );
        }
        Verdict::Failed(IoError::READ_ONLY)
    }

    /// Where the head of a read goes, and whether the read bypasses the cache.
    fn plan_read(&self, env: &Env, request: &Request) -> (Plan, bool) {
        let (from, want) = (self.first + request.range.start.0, request.range.count.0);
        if let Devices::Bare { .. } = self.config.devices {
            let is_suspect = self.is_suspect.load(Ordering::Relaxed);
            let backing = Plan::Backing { count: want, fill: 0 };
            return (if is_suspect { Plan::Fail } else { backing }, false);
        }
        let skips = self.skips(env, request);
        let core = self.core.as_ref().expect("a volume that is not bare has a cache");
        if self.is_ready(Ready::Change) && core.cache.has_failed() {
            core.break_down(env, &WriteError::Cache(IoError::IO));
        }
        let skips = skips || self.is_leaving.load(Ordering::Relaxed);
        let is_bypass = |set: &Set| bypasses(self.mode(), set.buckets.in_use_percent(), skips);
        let found = core.look(env, |set| {
            let set = set.filter(|_| !core.is_broken())?;
            match set.tree.find(self.inode(), from) {
                Found::Extent(key) => Some((hit(env, core, set, &key, want), is_bypass(set))),
                Found::Absent | Found::Hole { .. } => None,
            }
        });
        if let Some(found) = found {
            return found;
        }
        let mut guard = core.lock();
        let Some(set) = guard.as_mut() else { return (Plan::Fail, false) };
        if core.is_broken() {
            return (Plan::Degraded, false);
        }
        let is_bypass = is_bypass(set);
        let plan = match set.tree.find(self.inode(), from) {
            Found::Extent(key) => hit(env, core, set, &key, want),
            Found::Absent => {
                let head = Span { inode: self.inode(), start: from, end: from + 1 };
                Plan::Read { starts: set.wanted.add(head, request.id()) }
            }
            Found::Hole { end } => {
                let count = want.min(end - from);
                match self.config.devices.backing() {
                    Some(_) => {
                        let span = Span { inode: self.inode(), start: from, end: from + count };
                        let fill = match is_bypass {
                            true => 0,
                            false => self.begin_fill(env, set, span),
                        };
                        Plan::Backing { count, fill }
                    }
                    None => Plan::Zeros { count },
                }
            }
        };
        (plan, is_bypass)
    }

    fn map_read<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        let from = self.first + request.range.start.0;
        let (plan, is_bypass) = self.plan_read(env, request);
        match plan {
            Plan::Cache { sector, count, epoch } => {
                self.counters.add(env, Count::Hits as usize, 1);
                coverage::take(Path::Hit);
                self.count_read(env, request, count, true, is_bypass);
                request.accept(SectorCount(count));
                let waited = Waited::until_now(env, request);
                let number = sector;
                request.watch(Word { class: Class::Hit, epoch, waited, number }.to_word());
                let cache = self.config.devices.cache().expect("it has extents");
                Verdict::Remapped { disk: cache.disk.as_ref(), sector: Sector(sector) }
            }
            Plan::Backing { count, fill } => {
                self.counters.add(env, Count::Misses as usize, 1);
                coverage::take(Path::Miss);
                self.count_read(env, request, count, false, is_bypass);
                request.accept(SectorCount(count));
                let (class, epoch, waited) = (Class::Miss, Epoch::default(), Waited::default());
                request.watch(Word { class, epoch, waited, number: fill }.to_word());
                let backing = self.config.devices.backing().expect("not a flash-only volume");
                Verdict::Remapped { disk: backing.disk.as_ref(), sector: Sector(from) }
            }
            Plan::Read { starts } => self.wait_for_leaf(env, starts),
            Plan::Zeros { count } => {
                let count = SectorCount(count);
                request.accept(count);
                request.segs.zero(0, count.to_bytes() as usize);
                Verdict::Completed
            }
            Plan::Degraded => self.map_degraded(env, request),
            Plan::Fail => Verdict::Failed(IoError::IO),
        }
    }

    /// A request waits until a leaf is read.
    pub(super) fn wait_for_leaf(&self, env: &Env, starts: bool) -> Verdict<'_> {
        if starts {
            self.core.as_ref().expect("it has a cache").start_reading(env);
        }
        Verdict::Queued
    }

    /// Counts a read or write. True if it bypasses the cache.
    pub(super) fn skips(&self, env: &Env, request: &Request) -> bool {
        let from = Sector(self.first + request.range.start.0);
        self.bypass.as_ref().is_some_and(|bypass| bypass.skips(env, request, from))
    }

    /// A request of the cache device has ended.
    pub(super) fn measure(
        &self,
        env: &Env,
        request: &Request,
        direction: Direction,
        waited: Waited,
    ) {
        if let Some(bypass) = &self.bypass {
            bypass.ended(env, direction, waited.took(env, request));
        }
    }

    pub(super) fn end_request(&self, env: &Env, request: &mut Request, result: IoResult) -> EndIo {
        let word = Word::of_word(request.word());
        match word.class {
            Class::Hit => self.end_hit(env, request, word, result),
            Class::Insert => self.end_insert(env, request, word, result),
            Class::Overwrite => self.end_overwrite(env, request, word, result),
            Class::Around => self.end_around(env, request, word, result),
            Class::Held => self.end_held(env, request, word, result),
            Class::Miss => {
                self.go_on_filling(env, request, word.number, result, true);
                // The kernel does not count errors of read-ahead.
                if !request.flags.contains(Flags::BACKGROUND) {
                    self.count_backing(env, result);
                }
                EndIo::Done(result)
            }
        }
    }

    /// The end of a read of the cache device. Clean data that it could not read is read from the
    /// backing device: its extent leaves the tree, and the request is mapped again. What is there
    /// by then is as new as what was there before, or newer.
    fn end_hit(&self, env: &Env, request: &Request, word: Word, result: IoResult) -> EndIo {
        let core = self.core.as_ref().expect("it was read");
        let is_again = result.is_err() && self.config.devices.backing().is_some() && {
            let span = self.span_of(request);
            core.with(|set| set.drop_unreadable(&span, word.number))
        };
        core.readers.leave(env.reactor(), word.epoch);
        self.measure(env, request, Direction::Read, word.waited);
        self.count_cache(env, result);
        if is_again {
            self.counters.add(env, Count::ReadAgain as usize, 1);
            return EndIo::Requeue;
        }
        EndIo::Done(result)
    }
}

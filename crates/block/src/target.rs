//! [`Target`]: a mapping policy over a range of a mapped device.
//!
//! `map` decides at once and returns a [`Verdict`]; the engine acts on it. Whatever takes time is
//! an async task on the [`Env`] of the call. A target names no file, socket, thread or clock. Its
//! life: constructed at `load` (arguments and fixed header fields only), `resume` (mutable
//! metadata, recovery, tasks), requests, `presuspend` (give back parked requests), `suspend` (when
//! the last request has ended; or `presuspend_undo`, and requests continue). Then `resume` again,
//! or the end.

use std::sync::Arc;

use crate::claiming::Claim;
use crate::disk::{Disk, Extent, ExtentKind, Limits, LocalFuture};
use crate::env::Env;
use crate::error::{ConfigError, IoError, IoResult};
use crate::nature::Nature;
use crate::report::{Attribute, Report};
use crate::request::Request;
use crate::units::{Sector, SectorCount, SectorRange, Time};

/// What a target decided about a request.
pub enum Verdict<'a> {
    /// Send it to `disk` at `sector`.
    Remapped {
        /// The lower disk.
        disk: &'a dyn Disk,
        /// Where the request starts on it.
        sector: Sector,
    },
    /// Finished, with success.
    Completed,
    /// Kept: a task of the target completes or remaps it by its id, exactly once.
    Queued,
    /// Finished, with an error.
    Failed(IoError),
}

/// A target's answer to the completion of a request that it remapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndIo {
    /// Go on with this result.
    Done(IoResult),
    /// Map the request again.
    Requeue,
    /// Kept: the target completes it later, exactly once.
    Held,
}

/// What a suspend does with unfinished requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuspendMode {
    /// Finish everything first.
    Flush,
    /// Hand unfinished requests back to the device: they wait for the next table.
    NoFlush,
}

/// A refused message.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// Unknown word or wrong arguments (EINVAL).
    #[error("{0}")]
    Invalid(String),
    /// Not while the device is suspended or in use (EBUSY).
    #[error("{0}")]
    Busy(String),
    /// It was tried and failed (EIO and others).
    #[error("{0}")]
    Failed(String),
}

/// Content on a target's own device that is newer than the origin's.
#[derive(Clone)]
pub struct Dirty {
    /// How much.
    pub sectors: SectorCount,
    /// In blocks of this size.
    pub block: SectorCount,
    /// The device that lacks it. Served without the target, it has old data.
    pub origin: Arc<dyn Disk>,
    /// The device that has it, as the table line names it.
    pub device: String,
    /// About since when the oldest of it is dirty, if the target keeps that, from its start on.
    pub since: Option<Time>,
}

/// A mapping policy: one instance per table line.
pub trait Target: Send + Sync {
    /// Decides about a request whose range is relative to the target and lies inside it.
    /// May first keep only its head ([`Request::accept`]) and ask for `end_io`
    /// ([`Request::watch`]). Must not block or allocate on the ready path.
    fn map<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a>;

    /// Warms the index entries for a request that begins at `at` and will be mapped soon. A hint
    /// only: it decides and changes nothing, takes at most a short lock, and most requests are
    /// mapped without it.
    fn prefetch(&self, _env: &Env, _at: Sector) {}

    /// Sees the completion of a request it remapped and watched.
    fn end_io(&self, _env: &Env, _request: &mut Request, result: IoResult) -> EndIo {
        EndIo::Done(result)
    }

    /// The lower disk, and where on it the target's first sector lies, if `map` remaps every
    /// request there unchanged, never watches one, and wants one copy of a flush. The engine then
    /// does not call `map`. Called once, when the table is built.
    fn straight(&self) -> Option<(Arc<dyn Disk>, Sector)> {
        None
    }

    /// How many copies of a flush the target wants; `map` sees each with its number.
    fn flush_copies(&self) -> u16 {
        1
    }

    /// The lower disks, in the order of the arguments.
    fn lowers(&self) -> Vec<Arc<dyn Disk>>;

    /// Tells it from targets of its kind over the same lower disks, also after a restart.
    fn part(&self) -> u64 {
        0
    }

    /// The ranges of its lower disks that the target needs for itself. Ranges of `remaps` need no
    /// claim. Called when the table is about to be live; the answer must not change in a target's
    /// life.
    fn claims(&self) -> Vec<Claim> {
        Vec::new()
    }

    /// Where a range of the target lies on its lower disks, if it only sends requests there and
    /// keeps nothing of its own. Such a target claims nothing.
    fn remaps(&self, _range: SectorRange) -> Option<Vec<(Arc<dyn Disk>, SectorRange)>> {
        None
    }

    /// The lower disk of which the target is a cache, if it keeps the dirty marker of that disk. It
    /// is not started over any other disk beside which a marker stands.
    fn keeps_marker_of(&self) -> Option<Arc<dyn Disk>> {
        None
    }

    /// The generation of the dirty marker that the target has put beside that disk, or found there,
    /// if it has not removed it since. Asks no engine.
    fn dirty_marker(&self) -> Option<String> {
        None
    }

    /// Adapts the limits that the stacked lower disks gave.
    fn limits(&self, stacked: Limits) -> Limits {
        stacked
    }

    /// What it is made of, if it only remaps and keeps nothing of its own.
    fn nature(&self) -> Nature {
        Nature::UNKNOWN
    }

    /// Starts serving: reads mutable metadata, recovers, starts tasks on `env`'s reactor.
    ///
    /// # Errors
    /// The device stays suspended and says why.
    fn resume<'a>(&'a self, _env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// A suspend began: end parked requests soon, or with [`SuspendMode::NoFlush`] hand them back
    /// ([`Env::hand_back`]). Requests may still arrive. At the end of the world they may arrive for
    /// a long time; those that need not wait are served as before.
    fn presuspend(&self, _env: &Env, _mode: SuspendMode) {}

    /// The suspend was called off before its last request had left: undoes `presuspend`. Requests
    /// are in flight; none arrives before this returns.
    fn presuspend_undo<'a>(&'a self, _env: &'a Env) -> LocalFuture<'a, ()> {
        Box::pin(std::future::ready(()))
    }

    /// No request is left: make durable what must be, stop every task, then return. The device is
    /// suspended afterwards, also after an error.
    ///
    /// # Errors
    /// Acknowledged writes may be lost: says which device failed. The mapped device raises its
    /// failure count.
    fn suspend<'a>(&'a self, _env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// The target is suspended, and is replaced by another table or removed. Once this returns, no
    /// reactor writes to the lower disks on its behalf. If the other table cannot start, `resume`
    /// follows nevertheless, and reads mutable metadata again.
    ///
    /// # Errors
    /// As for [`Target::suspend`].
    fn close<'a>(&'a self, _env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// The failures of lower disks that concern the writers of the target. A target that only
    /// remaps passes on those of its lower disks. A target that can write lost data again absorbs
    /// them, and raises [`crate::Ctor::failures`] for acknowledged writes that it cannot restore.
    fn failures(&self) -> u64 {
        self.lowers().iter().map(|lower| lower.failures()).sum()
    }

    /// Of [`Target::failures`], those that were reported to a client already.
    fn failures_told(&self) -> u64 {
        self.lowers().iter().map(|lower| lower.failures_told()).sum()
    }

    /// All of [`Target::failures`] were reported to a client. Not for failures that are absorbed.
    fn acknowledge_failures(&self) {
        self.lowers().iter().for_each(|lower| lower.acknowledge_failures(lower.failures()));
    }

    /// The report: its counters, gauges and states.
    fn report(&self) -> Report {
        Report::NONE
    }

    /// The status line after the target's name, as the kernel prints it.
    fn status(&self) -> String {
        self.report().line()
    }

    /// Its options as they are now: with what messages changed, and defaults.
    fn attributes(&self) -> Vec<Attribute> {
        Vec::new()
    }

    /// The table line's fields after the target's name, as the kernel prints them. A message may
    /// change them; the next start then begins with what they are.
    fn table(&self) -> String;

    /// A message; answers with text (mostly empty).
    fn message<'a>(
        &'a self,
        _env: &'a Env,
        words: &'a [&'a str],
    ) -> LocalFuture<'a, Result<String, MessageError>> {
        let text = format!("target takes no messages, found '{}'", words.join(" "));
        Box::pin(std::future::ready(Err(MessageError::Invalid(text))))
    }

    /// What a range holds, like [`Disk::extents`].
    fn extents<'a>(
        &'a self,
        _env: &'a Env,
        range: SectorRange,
    ) -> LocalFuture<'a, Result<Vec<Extent>, IoError>> {
        let all = Extent { count: range.count, kind: ExtentKind::Data };
        Box::pin(std::future::ready(Ok(vec![all])))
    }

    /// A line for the operator when the server stops, if [`Target::dirty`] does not cover it.
    fn parting_word(&self) -> Option<String> {
        None
    }

    /// The content that only this target's own device has, if any. After a suspend: as of that
    /// suspend. `None` before the first resume, which reads it.
    fn dirty(&self) -> Option<Dirty> {
        None
    }

    /// How much writeback has copied to the origin since the table was loaded.
    fn written_back(&self) -> SectorCount {
        SectorCount::ZERO
    }

    /// The device that the first resume formats, as it is blank.
    fn formats(&self) -> Option<String> {
        None
    }

    /// True if [`Target::drain`] can make [`Target::dirty`] nothing.
    fn drains(&self) -> bool {
        false
    }

    /// Writes back all dirty content there is now, and waits for it. Meanwhile [`Target::dirty`]
    /// tells how much is left.
    fn drain<'a>(&'a self, _env: &'a Env) -> LocalFuture<'a, Result<(), MessageError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// True if the origin durably names its cache, and [`Target::detach`] ends that.
    fn detaches(&self) -> bool {
        false
    }

    /// Ends that no other table may write the origin, durably, after a drain. If the origin lacks
    /// data that only the cache had, the user has to name the set whose data is given up. Answers
    /// what became of the origin, for a person.
    fn detach<'a>(
        &'a self,
        _env: &'a Env,
        _given_up: Option<&'a str>,
    ) -> LocalFuture<'a, Result<Option<String>, MessageError>> {
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Of a cache: the range of the origin that has the same content as this one once nothing is
    /// dirty.
    fn shows_of_origin(&self, _range: SectorRange) -> Option<(Arc<dyn Disk>, SectorRange)> {
        None
    }

    /// Says whether the next suspend writes back all dirty content, too. The suspend ends that.
    /// Returns what was said before.
    fn drain_in_suspend(&self, _drains: bool) -> bool {
        false
    }

    /// A drain is under way whose end is a table without this target, or it was called off. While
    /// it is, nothing becomes dirty, so that the drain ends also if clients write all the time. A
    /// resume ends it, too.
    fn set_leaving(&self, _is_leaving: bool) {}

    /// The concrete target, for verbs that belong to one kind of target only.
    fn as_any(&self) -> Option<&dyn std::any::Any> {
        None
    }
}

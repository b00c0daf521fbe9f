//! `clone`: a copy of a source that serves at once, in the format and with the behaviour of the
//! kernel's dm-clone. Regions are copied in the background, or when they are written; then the
//! source is not needed any more.
//!
//! ```text
//!   read  -- hydrated? -- yes -> destination          no -> source
//!   write -- hydrated? -- yes -> destination
//!              no, whole regions -> destination, and the bits with its completion
//!              no, a part        -> waits for a copy of its region
//!   hydration: source -> destination, region by region, then the bit
//!   flush: destination, then the bits that were set (commit)
//! ```
//!
//! Files: `config` (table line), `regions` (bits and jobs in memory), `map` (verdicts), `hydrate`
//! (copies), `commit`, `open` (resume and suspend), `acknowledged` (the crash log), `status`
//! (report and messages).
//!
//! # Invariants
//! I1. A region's bit is set in memory when its whole content has been written to the destination.
//!     Only then does a request go there.
//! I2. A region in a job is not hydrated, and only its job writes it. So a copy never overwrites
//!     what a client wrote, and a client's write that covers the region is not mixed with a copy.
//! I3. A bit is committed only after a flush of the destination that began after the bit was set,
//!     with the failure count the same as before the first write of the region (`known`).
//! I4. A write is answered after the bit of its region is set, and its record is in the crash log.
//! I5. A flush that finds bits that are not durable is a commit. A write with FUA is answered after
//!     a commit, if there is one of those.
//! I6. If the destination has failed before a commit could flush, the regions whose bits are not
//!     durable are not hydrated any more: what is there may be lost, and the source has it. The
//!     bits are cleared first, then every write to the destination ends that may not have seen
//!     that, then the loss is counted for all clients, and only then does anything go on. The next
//!     request to the destination that ends notices a failure; a commit does in any case, also if
//!     the metadata device has failed.
//! I7. The source is never written.
//!
//! # What a crash leaves
//! Power cut: the bits of the last commit. The content of these regions was flushed before (I3). A
//! region without a bit reads as the source; its writes since then were not flushed (I5), and the
//! destination may hold anything there, which no request sees before a copy has replaced it. Kill:
//! the same, and the crash log has the regions of answered writes (I4). They are hydrated again
//! before anything is served.

mod acknowledged;
mod commit;
mod config;
mod hydrate;
mod map;
mod open;
mod regions;
mod status;
#[cfg(test)]
#[cfg(not(shuttle))]
mod tests;

#[cfg(feature = "canary")]
pub mod canary;
#[cfg(not(feature = "canary"))]
mod canary;

use std::sync::{Arc, Weak};

use cairn_block::sync::Mutex;
use cairn_block::sync::atomic::AtomicU64;
use cairn_block::{
    Attribute, Claim, ClaimKind, ConfigError, Copier, Disk, EndIo, Env, Events, Extent,
    FailureCount, IoError, IoResult, Limits, LocalFuture, MessageError, Report, Request, Sector,
    SectorRange, SuspendMode, Target, TaskGroup, Verdict,
};
use event_listener::Event;

use crate::epochs::Epochs;
use crate::fair::Fair;

pub use config::SPEC;
pub use open::KIND;

use acknowledged::Place;
use commit::Metadata;
use config::Config;
use regions::{Bits, State};

/// Bytes of memory that copies for waiting writes may take.
const FOREGROUND_BYTES: u64 = 16 << 20;
/// Bytes of memory that hydration may take.
const BACKGROUND_BYTES: u64 = 16 << 20;

/// The target.
pub struct Clone {
    me: Weak<Clone>,
    config: Config,
    read_only: bool,
    source: Arc<dyn Disk>,
    destination: Arc<dyn Disk>,
    /// The mapped device's own failure count.
    failures: Arc<FailureCount>,
    events: Events,
    /// The metadata device was blank when the table was built.
    formats: bool,
    /// Where its crash log is; none if there is none.
    crash_log: Option<Place>,
    /// Which regions are hydrated; changed under the lock of `state` only.
    bits: Bits,
    state: Mutex<State>,
    metadata: Fair<Metadata>,
    /// Writes in flight to hydrated regions (I6).
    writers: Arc<Epochs<1>>,
    foreground: Copier,
    background: Copier,
    tasks: Arc<TaskGroup>,
    /// The failure count of the destination that a request has seen last.
    seen_failures: AtomicU64,
    /// Notified at every change that a task may wait for.
    changed: Event,
}

impl Clone {
    fn arc(&self) -> Arc<Clone> {
        self.me.upgrade().expect("a target that is called is alive")
    }

    /// Starts a task that `suspend` waits for.
    fn spawn(&self, env: &Env, task: impl AsyncFnOnce(&Clone, &Env) + 'static) {
        let clone = self.arc();
        self.tasks.spawn(env, async move |env| task(&clone, env).await);
    }
}

impl Target for Clone {
    fn map<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        self.map_request(env, request)
    }

    fn end_io(&self, env: &Env, request: &mut Request, result: IoResult) -> EndIo {
        self.end_request(env, request, result)
    }

    /// In the order of the arguments.
    fn lowers(&self) -> Vec<Arc<dyn Disk>> {
        vec![self.config.metadata.disk.clone(), self.destination.clone(), self.source.clone()]
    }

    fn claims(&self) -> Vec<Claim> {
        let start = Sector(0);
        vec![
            Claim::from(&self.config.metadata.disk, start, ClaimKind::Own, "clone metadata"),
            Claim::from(&self.destination, start, ClaimKind::Own, "destination of a clone"),
            Claim::from(&self.source, start, ClaimKind::Read, "source of a clone"),
        ]
    }

    fn limits(&self, stacked: Limits) -> Limits {
        let [source, destination] = [self.source.limits(), self.destination.limits()];
        Limits {
            logical_block: source.logical_block.max(destination.logical_block),
            discard: true,
            fast_zero: false,
            read_only: destination.read_only || self.read_only,
            ..stacked
        }
    }

    fn resume<'a>(&'a self, env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(self.start(env))
    }

    /// A commit that makes room for a request may never come, if the metadata device has failed.
    /// Without a flush these requests go back to the mapped device, now and later; else they do
    /// once a commit has failed.
    fn presuspend(&self, env: &Env, mode: SuspendMode) {
        let is_waited_for = {
            let mut state = self.state.lock();
            state.suspending = true;
            state.handing_back |= mode == SuspendMode::NoFlush;
            state.hand_back(env);
            !state.room_waiters.is_empty()
        };
        if is_waited_for {
            self.kick_commit(env);
        }
        self.changed.notify(usize::MAX);
    }

    fn presuspend_undo<'a>(&'a self, _env: &'a Env) -> LocalFuture<'a, ()> {
        let mut state = self.state.lock();
        (state.suspending, state.handing_back) = (false, false);
        drop(state);
        self.changed.notify(usize::MAX);
        Box::pin(std::future::ready(()))
    }

    fn suspend<'a>(&'a self, env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(self.stop(env))
    }

    /// Those of the destination: clients' writes are there. Failures of the metadata device are
    /// told by the flush that meets them, and lose nothing.
    fn failures(&self) -> u64 {
        self.destination.failures()
    }

    fn failures_told(&self) -> u64 {
        self.destination.failures_told()
    }

    fn acknowledge_failures(&self) {
        self.destination.acknowledge_failures(self.destination.failures());
        let mut state = self.state.lock();
        state.losses.told(&self.failures);
        if !state.losses.are_untold() {
            state.acknowledged.told();
        }
    }

    fn report(&self) -> Report {
        self.make_report()
    }

    fn attributes(&self) -> Vec<Attribute> {
        self.state.lock().settings.args.attributes()
    }

    fn table(&self) -> String {
        self.state.lock().settings.args.to_string()
    }

    fn message<'a>(
        &'a self,
        _env: &'a Env,
        words: &'a [&'a str],
    ) -> LocalFuture<'a, Result<String, MessageError>> {
        Box::pin(std::future::ready(self.act_on_message(words)))
    }

    fn extents<'a>(
        &'a self,
        env: &'a Env,
        range: SectorRange,
    ) -> LocalFuture<'a, Result<Vec<Extent>, IoError>> {
        Box::pin(self.extents_of(env, range))
    }

    fn formats(&self) -> Option<String> {
        self.formats.then(|| self.config.metadata.argument.clone())
    }

    fn as_any(&self) -> Option<&dyn std::any::Any> {
        Some(self)
    }
}

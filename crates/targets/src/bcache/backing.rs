//! The backing device as clients write to it: writes in flight, flushes, and its failures.
//!
//! `flushes` counts what a flush covered and what a failure may have lost (F1 to F3).
//!
//! # Invariants
//! A1. A write from above is sent to the backing device only where the cache has nothing, durably,
//!     and nothing dirty in memory (but for large write-zeroes, see `zeroes`). It is listed from
//!     its verdict to its end.
//! A2. Writeback copies no extent that overlaps a write in the list (R7). A write that comes while
//!     an extent is copied finds it dirty, and goes into the cache (R9).
//! A3. A flush of a client ends well only if a flush of the backing device covers the client's
//!     writes that had completed, and no failure of the device came between (R1, R2).
//! A4. Acknowledged writes that a failure may have lost raise the failure count of the mapped
//!     device once, also if a flush that no client asked for met the failure. The next suspend
//!     fails unless a client was told by then. What writeback copied is dirty until its own flush,
//!     so it is copied again.
//!     The device's own count of what was told stays behind until a client was told of the loss,
//!     and until no write is in flight that the failure may have lost. So a failure that no client
//!     was told of is found after a kill, whether the killed process had seen it or not.
//! A5. A *held* write (R16) is answered when it is durable, so no flush of a client waits for it.
//!     It fails if the device has failed since it began: its data may be gone.

use std::collections::BTreeSet;
use std::sync::Arc;

use cairn_block::sync::atomic::{AtomicU64, Ordering};
use cairn_block::sync::{Mutex, MutexGuard};
use cairn_block::{Env, FailureCount, IoError, IoResult, RequestId, mutants};
use event_listener::Event;

use super::btree::Span;
use super::bypass::SHARED;
use super::canary::{Bug, planted};
use super::config::Config;
use super::coverage::{self, Path};
use super::set::Errors;
use super::volume::Bcache;
use crate::args::Device;
use crate::flushes::Flushes;
use crate::losses::Losses;

struct State {
    /// Writes of clients in flight (A1).
    writes: Vec<Span>,
    flushes: Flushes,
    /// Held writes that have ended, and the low bits of the failures that were known when each
    /// began (A5). A task releases them.
    held: Vec<(RequestId, u32)>,
    is_releasing: bool,
    losses: Losses,
    /// The failure count of the mapped device with the last loss, if no client was told of it.
    owed: Option<u64>,
    /// A write around the cache has begun since a client's flush took this: all that some policies
    /// of [`super::flushing`] know.
    written_since_flush: bool,
    /// Where data is that no flush has covered: written since the last flush began, and before. And
    /// where a failure may have dropped data, which a page cache may show all the same.
    written: Zones,
    /// Each with how many writes had ended when the flush began.
    flushing: Vec<(u64, Zones)>,
    suspect: Zones,
}

/// A set of zones of the device; all, if there are too many.
#[derive(Default)]
struct Zones {
    zones: BTreeSet<u64>,
    all: bool,
}

/// The default of `io_error_limit`: after so many errors the volume is stopped.
const ERROR_LIMIT: u64 = 64;
/// Sectors of a zone.
const ZONE_SECTORS: u64 = 2048;
/// How many zones a set has at most.
const ZONES_MAX: usize = 4096;

impl Zones {
    fn add(&mut self, span: &Span) {
        let zones = span.start / ZONE_SECTORS..span.end.div_ceil(ZONE_SECTORS);
        self.all |= self.zones.len() + (zones.end - zones.start) as usize > ZONES_MAX;
        if !self.all {
            self.zones.extend(zones);
        }
    }

    fn join(&mut self, other: Zones) {
        self.all |= other.all || self.zones.len() + other.zones.len() > ZONES_MAX;
        if !self.all {
            self.zones.extend(other.zones);
        }
    }

    fn overlaps(&self, span: &Span) -> bool {
        let zones = span.start / ZONE_SECTORS..span.end.div_ceil(ZONE_SECTORS);
        self.all || self.zones.range(zones).next().is_some()
    }
}

impl State {
    /// A write in flight has ended.
    fn end(&mut self, span: &Span) {
        let index = self.writes.iter().position(|own| own == span);
        self.writes.swap_remove(index.expect("A1: it is listed"));
    }

    /// Acknowledges failures of the device that have lost nothing, or that a client was told of
    /// (A4).
    fn acknowledge(&self, device: &Device) {
        let known = self.flushes.known();
        if self.owed.is_none() && self.writes.is_empty() && device.disk.failures_told() < known {
            device.disk.acknowledge_failures(known);
        }
    }
}

/// See the module's description.
pub(super) struct Traffic {
    state: Mutex<State>,
    /// The names of the volume and of the backing device, for the log.
    names: String,
    /// The failure count of the mapped device.
    failures: Arc<FailureCount>,
    /// Notified when a flush has covered something.
    flushed: Event,
    /// Notified when a held write has ended.
    held: Event,
    /// Of requests of clients; writeback names what it cannot copy itself.
    pub errors: Errors,
    /// How often the device was flushed.
    pub flushes: AtomicU64,
}

impl Traffic {
    /// No writes.
    pub fn new(failures: Arc<FailureCount>, config: &Config) -> Traffic {
        let state = State {
            writes: Vec::new(),
            flushes: Flushes::new(0),
            held: Vec::new(),
            is_releasing: false,
            losses: Losses::default(),
            owed: None,
            written_since_flush: false,
            written: Zones::default(),
            flushing: Vec::new(),
            suspect: Zones::default(),
        };
        let [flushed, held] = [Event::new(), Event::new()];
        let (errors, flushes) = (Errors::new(ERROR_LIMIT), AtomicU64::new(0));
        let backing = config.devices.backing().map_or("", |device| &device.argument);
        let names = format!("{}: {backing}", config.volume);
        Traffic { state: Mutex::new(state), names, failures, flushed, held, errors, flushes }
    }

    /// The device was flushed, and its failure count is `known`: everything on it is durable.
    pub fn open(&self, known: u64) {
        let mut state = self.state.lock();
        state.flushes = Flushes::new(known);
        let done = state.flushes.done();
        state.flushes.succeed(done);
        (state.written, state.flushing) = (Zones::default(), Vec::new());
        state.losses.resume();
    }

    /// Notified when a flush has covered something.
    pub fn flushed(&self) -> &Event {
        &self.flushed
    }

    /// True if what the device shows in these sectors is durable, and no write there is in flight.
    pub fn is_settled(&self, span: &Span) -> bool {
        let state = self.state.lock();
        let flushing = state.flushing.iter().map(|(_, zones)| zones);
        let mut volatile = [&state.written, &state.suspect].into_iter().chain(flushing);
        let is_written = state.writes.iter().any(|own| own.overlaps(span));
        !is_written && !volatile.any(|zones| zones.overlaps(span))
    }

    /// A client's write of these sectors begins. Answers the low bits of the failures that are
    /// known, for its end.
    pub fn begin(&self, span: Span) -> u32 {
        let mut state = self.state.lock();
        state.writes.push(span);
        state.written_since_flush = true;
        state.flushes.known() as u32
    }

    /// It has ended. `is_durable` if it was durable by itself.
    pub fn end(&self, span: &Span, began: u32, is_durable: bool, result: IoResult) {
        if result.is_err() {
            return self.end_undefined(span);
        }
        let mut state = self.state.lock();
        state.end(span);
        if is_durable {
            return;
        }
        state.written.add(span);
        if state.flushes.add_acknowledged(began) {
            state.suspect.add(span);
            self.lose(state);
        }
    }

    /// It has ended well, and is held (A5). True if the caller starts the task that releases it.
    pub fn hold(&self, span: &Span, began: u32, id: RequestId) -> bool {
        let mut state = self.state.lock();
        state.end(span);
        state.written.add(span);
        state.flushes.add_own();
        state.held.push((id, began));
        self.held.notify(usize::MAX);
        !std::mem::replace(&mut state.is_releasing, true)
    }

    /// How many writes of clients are in flight or held.
    pub fn depth(&self) -> usize {
        let state = self.state.lock();
        state.writes.len() + state.held.len()
    }

    /// Takes the held writes that have ended. None if there are none: the task ends.
    fn take_held(&self) -> Option<Vec<(RequestId, u32)>> {
        let mut state = self.state.lock();
        state.is_releasing = !state.held.is_empty();
        state.is_releasing.then(|| std::mem::take(&mut state.held))
    }

    /// It has ended, and its client relies on no content: it failed, or was a discard.
    pub fn end_undefined(&self, span: &Span) {
        let mut state = self.state.lock();
        state.end(span);
        state.written.add(span);
        state.flushes.add_undefined();
    }

    /// What was copied to these sectors may be lost, although the device may show it.
    pub fn distrust(&self, span: &Span) {
        self.state.lock().suspect.add(span);
    }

    /// True if a write around the cache has begun since the last call.
    pub fn take_written_since_flush(&self) -> bool {
        std::mem::take(&mut self.state.lock().written_since_flush)
    }

    /// True if a write in flight has some of these sectors (A2).
    pub fn overlaps(&self, span: &Span) -> bool {
        self.state.lock().writes.iter().any(|own| own.overlaps(span))
    }

    /// True if a flush of a client needs none of the backing device, whose failure count this is.
    pub fn is_durable(&self, failures: u64) -> bool {
        let state = self.state.lock();
        state.flushes.are_durable() && state.flushes.known() >= failures
    }

    /// True if acknowledged writes may have been lost since the last resume, and no client was told
    /// since (A4).
    pub fn has_untold_loss(&self) -> bool {
        self.state.lock().losses.are_untold()
    }

    /// A client was told of all failures of the mapped device.
    pub fn told(&self, device: Option<&Device>) {
        let mut state = self.state.lock();
        state.losses.told(&self.failures);
        if state.owed.is_some_and(|count| count <= self.failures.told()) {
            state.owed = None;
            device.into_iter().for_each(|device| state.acknowledge(device));
        }
    }

    /// An earlier process lost what the set had acknowledged. Answers the failure count that has
    /// the loss.
    pub fn count_loss_of_set(&self) -> u64 {
        self.state.lock().losses.add(&self.failures);
        self.failures.count()
    }

    /// The device has a failure of which no client was told, which an earlier process may not have
    /// seen. What it shows anywhere may be lost.
    pub fn lose_unseen(&self) {
        let mut state = self.state.lock();
        if state.owed.is_none() {
            state.suspect.all = true;
            self.lose(state);
        }
    }

    /// Counts a loss (A4). Losses between two answers to clients are one line of the log.
    fn lose(&self, mut state: MutexGuard<'_, State>) {
        coverage::take(Path::LoseTraffic);
        let is_logged = state.losses.are_untold();
        state.losses.add(&self.failures);
        state.owed = Some(self.failures.count());
        drop(state);
        if !is_logged {
            tracing::error!("{}: a failure may have lost writes around the cache", self.names);
        }
    }

    /// Deals with failures of the device that are not known yet (A4).
    fn look_at(&self, device: &Device) {
        let count = device.disk.failures();
        let mut state = self.state.lock();
        if count > state.flushes.known() {
            let written = std::mem::take(&mut state.written);
            state.suspect.join(written);
            let flushing = std::mem::take(&mut state.flushing);
            flushing.into_iter().for_each(|(_, zones)| state.suspect.join(zones));
            if state.flushes.fail(count) {
                return self.lose(state);
            }
        }
        state.acknowledge(device);
    }

    /// Makes the completed writes of clients durable, if there are any that are not (A3).
    ///
    /// # Errors
    /// The flush failed, or acknowledged writes may be lost.
    pub async fn flush(&self, env: &Env, device: &Device) -> IoResult {
        self.flush_up_to(env, device, Flushes::wanted).await
    }

    /// The same of so many writes.
    async fn flush_up_to(
        &self,
        env: &Env,
        device: &Device,
        wanted: fn(&Flushes) -> u64,
    ) -> IoResult {
        let (wanted, losses) = {
            let state = self.state.lock();
            (wanted(&state.flushes), state.losses.count())
        };
        loop {
            self.look_at(device);
            let (known, covered) = {
                let mut state = self.state.lock();
                if state.losses.count() != losses {
                    return Err(IoError::IO);
                }
                if state.flushes.has_covered(wanted) {
                    return Ok(());
                }
                let (known, done) = (state.flushes.known(), state.flushes.done());
                let written = std::mem::take(&mut state.written);
                state.flushing.push((done, written));
                if planted(Bug::OneBitFlag) {
                    state.flushes.succeed(done);
                }
                (known, done)
            };
            self.flushes.fetch_add(1, Ordering::Relaxed);
            let flushed = env.make_durable(&device.disk).await;
            self.look_at(device);
            flushed?;
            let name = "bcache: failure count of the backing device";
            if mutants::same(name, known, device.disk.failures()) {
                let mut state = self.state.lock();
                state.flushes.succeed(covered);
                state.flushing.retain(|(done, _)| *done > covered);
                self.flushed.notify(usize::MAX);
            }
        }
    }
}

impl Bcache {
    /// Deals with failures of the backing device, which a task of the volume may have met.
    pub(super) fn look_at_backing(&self) {
        if let Some(backing) = self.config.devices.backing().filter(|_| !self.read_only) {
            self.traffic.look_at(backing);
        }
    }

    /// Makes what clients wrote to the backing device durable.
    ///
    /// # Errors
    /// The flush failed, or acknowledged writes may be lost.
    pub(super) async fn flush_traffic(&self, env: &Env) -> IoResult {
        match self.config.devices.backing() {
            Some(backing) => self.traffic.flush(env, backing).await,
            None => Ok(()),
        }
    }

    /// Answers held writes, until there are none.
    pub(super) async fn release_held(&self, env: &Env) {
        let (traffic, backing) = (&self.traffic, self.config.devices.backing());
        let backing = backing.expect("writes go around the cache");
        loop {
            let at = env.now() + SHARED;
            let are_all_held = || traffic.state.lock().writes.is_empty();
            env.until_or_time(&traffic.held, Some(at), are_all_held).await;
            let Some(held) = traffic.take_held() else { return };
            let flush = traffic.flush_up_to(env, backing, Flushes::done);
            let flushed = match planted(Bug::HeldBeforeFlush) {
                true => Ok(()),
                false => mutants::step("bcache: flush of held writes", (), flush).await,
            };
            let known = u64::from(traffic.state.lock().flushes.known() as u32);
            for (id, began) in held {
                let name = "bcache: failure count of a held write";
                let is_well = mutants::same(name, u64::from(began), known);
                env.complete(id, flushed.and(if is_well { Ok(()) } else { Err(IoError::IO) }));
            }
        }
    }

    /// True if [`Bcache::flush_traffic`] has nothing to do.
    pub(super) fn is_traffic_durable(&self) -> bool {
        let backing = self.config.devices.backing();
        backing.is_none_or(|device| self.traffic.is_durable(device.disk.failures()))
    }
}

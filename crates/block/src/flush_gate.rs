//! [`FlushGate`]: the flushes of one drive, and the writes that are flushes of their own.
//!
//! A drive reports a failed flush to one flusher, and may have dropped the writes of all others,
//! whose own flushes succeed afterwards. With the gate, a successful flush covers what it should:
//!
//! G1. One flush of the drive runs and one is queued. The queued one begins when the running one
//!     has ended, and serves all callers that came in between. So no flush overtakes one that
//!     fails.
//! G2. A flush ends only when every FUA write that began before the drive finished the flush has
//!     been answered: a FUA write that fails may have dropped others' writes, too.
//! G3. A failed flush raises the drive's failure count before any caller is answered (F1).
//! G4. A failed FUA write is sent once more without FUA. If that fails too, the medium refused
//!     this write: it is its own error only. If it succeeds, the flush inside the first attempt
//!     failed: the count rises, and the write fails, since it is not durable.
//!
//! With G1 to G3, a flush that succeeded while the failure count did not change covers every write
//! that completed before the flush was submitted. The users compare the count.
//!
//! A running flush is led by one of its waiters, on that waiter's reactor. If the leader is
//! dropped, the flush counts as failed.

use std::future::Future;
use std::sync::Arc;

use event_listener::Event;

use crate::error::{IoError, IoResult};
use crate::failures::FailureCount;
use crate::mutants;
use crate::sync::Mutex;
use crate::wait::{until, until_some};

/// One flush of the drive, for all that share it.
type Batch = Arc<Mutex<Option<IoResult>>>;

#[derive(Default)]
struct State {
    running: bool,
    queued: Batch,
    /// FUA writes that are not answered, by the half of [`State::half`] in which they began.
    durable_writes: [u64; 2],
    /// Where FUA writes count that begin now. The other half only falls.
    half: usize,
}

/// See the module's description.
#[derive(Default)]
pub struct FlushGate {
    failures: Arc<FailureCount>,
    state: Mutex<State>,
    changed: Event,
}

/// A FUA write, from its beginning to its answer.
struct DurableWrite<'a> {
    gate: &'a FlushGate,
    half: usize,
}

impl Drop for DurableWrite<'_> {
    fn drop(&mut self) {
        let mut state = self.gate.state.lock();
        state.durable_writes[self.half] -= 1;
        let last = state.durable_writes[self.half] == 0;
        drop(state);
        if last {
            self.gate.changed.notify(usize::MAX);
        }
    }
}

/// Leads a flush until it is dropped.
struct Leader<'a> {
    gate: &'a FlushGate,
    batch: &'a Batch,
}

impl Leader<'_> {
    fn answer(&self, result: IoResult) {
        *self.batch.lock() = Some(result);
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        let unanswered = self.batch.lock().is_none();
        if unanswered {
            self.gate.failures.raise();
            self.answer(Err(IoError::IO));
        }
        self.gate.state.lock().running = false;
        self.gate.changed.notify(usize::MAX);
    }
}

/// What someone who wants a flush does next.
enum Turn {
    Answer(IoResult),
    Lead,
}

impl FlushGate {
    /// The gate of a drive with this failure count.
    pub fn new(failures: Arc<FailureCount>) -> FlushGate {
        FlushGate { failures, ..FlushGate::default() }
    }

    /// The drive's failure count.
    pub fn failures(&self) -> &Arc<FailureCount> {
        &self.failures
    }

    /// Makes durable what completed before this call. `flush` flushes the drive itself; it is
    /// called if this caller leads.
    ///
    /// # Errors
    /// The flush failed, for everyone who shares it.
    pub async fn flush<F: Future<Output = IoResult>>(&self, flush: impl FnOnce() -> F) -> IoResult {
        let batch = self.state.lock().queued.clone();
        if let Turn::Answer(result) = until_some(&self.changed, || self.turn(&batch)).await {
            return result;
        }
        let leader = Leader { gate: self, batch: &batch };
        let result = flush().await;
        if result.is_err() && !mutants::skips("gate: count of a failed flush") {
            self.failures.raise();
        }
        if !mutants::skips("gate: wait for durable writes") {
            self.durable_writes_answered().await;
        }
        leader.answer(result);
        result
    }

    /// What a caller of this batch does; none while it has to wait.
    fn turn(&self, batch: &Batch) -> Option<Turn> {
        if let Some(result) = *batch.lock() {
            return Some(Turn::Answer(result));
        }
        let mut state = self.state.lock();
        let overtakes = mutants::skips("gate: wait for the flush that runs");
        if state.running && !overtakes || !Arc::ptr_eq(&state.queued, batch) {
            return None;
        }
        state.running = true;
        state.queued = Batch::default();
        Some(Turn::Lead)
    }

    /// G2: waits for the FUA writes that began until now. Only the leader of a flush calls it.
    async fn durable_writes_answered(&self) {
        let half = {
            let mut state = self.state.lock();
            let half = state.half;
            state.half = 1 - half;
            half
        };
        until(&self.changed, || self.state.lock().durable_writes[half] == 0).await;
    }

    /// A FUA write. `write` sends it to the drive, with FUA if its argument says so.
    ///
    /// # Errors
    /// The write is not durable (G4).
    pub async fn durable_write<F: Future<Output = IoResult>>(
        &self,
        mut write: impl FnMut(bool) -> F,
    ) -> IoResult {
        let half = {
            let mut state = self.state.lock();
            let half = state.half;
            state.durable_writes[half] += 1;
            half
        };
        let _until_answered = DurableWrite { gate: self, half };
        let Err(error) = write(true).await else { return Ok(()) };
        if write(false).await.is_ok() && !mutants::skips("gate: count of a failed durable write") {
            self.failures.raise();
        }
        Err(error)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests;

#[cfg(all(test, shuttle))]
mod interleavings;

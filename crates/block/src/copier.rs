//! The bounded copier: moves ranges between disks with a budget of memory (the kernel's
//! kcopyd, bounded).
//!
//! A job takes its whole budget in one step or waits holding nothing, in order of arrival; the
//! budget returns when the copy ends. A job larger than the budget is copied in pieces. The
//! sources of a job may lie apart; they land next to each other in one write.
//!
//! B1. Free bytes and the grants together are the budget.
//! B2. Waiters are in order of arrival, each once.
//!
//! A granted job has two steps: [`CopyGrant::read`] and [`CopyData::write`]. A caller may do
//! other things between them: hold the data of several jobs, order them, write them as one, or
//! write to several disks. All copies are read by the first step.
//! Requests of a copier carry [`Flags::BACKGROUND`].
//! [`Copier::copy`] does without the steps where the disks copy by themselves ([`Env::copy`]).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use event_listener::Event;

use crate::buf::Segs;
use crate::disk::{CopyError, Disk};
use crate::env::{Env, Io};
use crate::error::{IoError, IoResult};
use crate::invariants;
use crate::op::Flags;
use crate::sync::Mutex;
use crate::units::{Sector, SectorCount, SectorRange};
use crate::wait::until;

/// One source of a copy.
#[derive(Clone)]
pub struct CopyPiece {
    /// Where to read.
    pub disk: Arc<dyn Disk>,
    /// What to read.
    pub range: SectorRange,
}

/// A copy: the pieces, in order, to one contiguous range.
pub struct CopyJob {
    /// The sources.
    pub from: Vec<CopyPiece>,
    /// Where to write.
    pub to: Arc<dyn Disk>,
    /// The first sector written.
    pub start: Sector,
    /// Flags of the write.
    pub flags: Flags,
}

/// How long the two sides of a copy took, in turns of the reactor.
#[derive(Clone, Copy, Debug, Default)]
pub struct CopyTimes {
    /// Reading the sources.
    pub read: Duration,
    /// Writing the destination.
    pub write: Duration,
}

struct Budget {
    free_bytes: u64,
    granted_bytes: u64,
    queue: VecDeque<u64>,
    next_ticket: u64,
}

impl Budget {
    /// Takes `bytes` if the ticket is the first and there is enough.
    fn takes(&mut self, ticket: u64, bytes: u64) -> bool {
        let takes = self.queue.front() == Some(&ticket) && self.free_bytes >= bytes;
        if takes {
            self.queue.pop_front();
            self.free_bytes -= bytes;
            self.granted_bytes += bytes;
        }
        takes
    }

    fn check_state(&self, total_bytes: u64) {
        assert_eq!(self.free_bytes + self.granted_bytes, total_bytes, "B1");
        assert!(self.queue.iter().is_sorted_by(|a, b| a < b), "B2");
        assert!(self.queue.back().is_none_or(|last| *last < self.next_ticket), "B2");
    }
}

/// A budget of copy memory, shared by the jobs of one owner on all reactors.
pub struct Copier {
    total_bytes: u64,
    budget: Mutex<Budget>,
    changed: Event,
}

/// Copy memory that was granted; dropping it lets the next job continue.
pub struct CopyGrant<'a> {
    copier: &'a Copier,
    bytes: u64,
    ticket: u64,
}

impl Drop for CopyGrant<'_> {
    fn drop(&mut self) {
        let mut budget = self.copier.budget.lock();
        budget.free_bytes += self.bytes;
        budget.granted_bytes -= self.bytes;
        budget.queue.retain(|&ticket| ticket != self.ticket);
        invariants::sample(|| budget.check_state(self.copier.total_bytes));
        drop(budget);
        self.copier.changed.notify(usize::MAX);
    }
}

impl<'a> CopyGrant<'a> {
    /// How many bytes were granted.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The first step of a job: reads all pieces at once, next to each other. They must not be
    /// longer than the grant.
    ///
    /// # Errors
    /// The error of the first piece that could not be read.
    pub async fn read(self, env: &Env, pieces: &[CopyPiece]) -> Result<CopyData<'a>, IoError> {
        let segs = env.segs(sectors_of(pieces));
        debug_assert!(segs.bytes() as u64 <= self.bytes, "a job reads what it was granted");
        let mut offset = 0;
        let mut reads = Vec::with_capacity(pieces.len());
        for piece in pieces {
            let bytes = piece.range.to_bytes() as usize;
            let part = segs.slice(offset, bytes);
            let read = Io::read(piece.range, part).with(Flags::BACKGROUND);
            reads.push(env.io(&piece.disk, read));
            offset += bytes;
        }
        let mut result = Ok(());
        for read in reads {
            result = result.and(read.await);
        }
        result.map(|()| CopyData { segs, grant: self })
    }
}

/// The data of a job between its two steps, with the grant that it counts against.
pub struct CopyData<'a> {
    segs: Segs,
    grant: CopyGrant<'a>,
}

impl<'a> CopyData<'a> {
    /// The data, for a caller that writes it together with other data.
    pub fn segs(&self) -> &Segs {
        &self.segs
    }

    /// The grant, for the next piece of the same job. The data must not be in use any more.
    pub fn into_grant(self) -> CopyGrant<'a> {
        self.grant
    }

    /// The second step: writes the data to `range`, as much as it needs from the start; the grant
    /// returns.
    ///
    /// # Errors
    /// The error of the write. The destination holds any part of the data.
    pub async fn write(
        self,
        env: &Env,
        to: &Arc<dyn Disk>,
        range: SectorRange,
        flags: Flags,
    ) -> IoResult {
        let data = self.segs.slice(0, range.to_bytes() as usize);
        env.io(to, Io::write(range, data).with(flags | Flags::BACKGROUND)).await
    }
}

impl Copier {
    /// A copier that holds at most `total_bytes` of data in memory.
    pub fn new(total_bytes: u64) -> Copier {
        let (queue, next_ticket) = (VecDeque::new(), 0);
        let budget = Budget { free_bytes: total_bytes, granted_bytes: 0, queue, next_ticket };
        Copier { total_bytes, budget: Mutex::new(budget), changed: Event::new() }
    }

    /// Bytes in use.
    pub fn used_bytes(&self) -> u64 {
        self.total_bytes - self.budget.lock().free_bytes
    }

    /// Takes `bytes` of the budget (all of it, if there is not so much) in one step, or waits
    /// holding nothing, in order of arrival: for who reads and writes by himself.
    pub async fn grant(&self, bytes: u64) -> CopyGrant<'_> {
        let bytes = bytes.min(self.total_bytes);
        let (mut grant, is_taken) = {
            let mut budget = self.budget.lock();
            let ticket = budget.next_ticket;
            budget.next_ticket += 1;
            budget.queue.push_back(ticket);
            let is_taken = budget.takes(ticket, bytes);
            (CopyGrant { copier: self, bytes: 0, ticket }, is_taken)
        };
        // Most jobs need not wait: no listener is made for them.
        if !is_taken {
            until(&self.changed, || self.budget.lock().takes(grant.ticket, bytes)).await;
        }
        grant.bytes = bytes;
        self.changed.notify(usize::MAX);
        grant
    }

    /// Copies. On an error the destination holds any part of the data.
    ///
    /// # Errors
    /// The first side that failed.
    pub async fn copy(&self, env: &Env, job: &CopyJob) -> Result<CopyTimes, CopyError> {
        self.copy_if(env, job, async || Ok(())).await
    }

    /// The same, and asks directly before each write whether it may be written. A refusal ends as
    /// an error of the write.
    ///
    /// # Errors
    /// Those of [`Copier::copy`].
    pub async fn copy_if(
        &self,
        env: &Env,
        job: &CopyJob,
        may_write: impl AsyncFn() -> IoResult,
    ) -> Result<CopyTimes, CopyError> {
        let may_write = &may_write;
        let most = SectorCount::of_bytes(self.total_bytes).0.max(8);
        let (mut times, mut start) = (CopyTimes::default(), job.start);
        let whole = sectors_of(&job.from);
        if whole.0 <= most {
            self.copy_batch(env, &job.from, (job, may_write), (start, whole), &mut times).await?;
            return Ok(times);
        }
        let mut batch: Vec<CopyPiece> = Vec::new();
        let mut batched = SectorCount::ZERO;
        for piece in &job.from {
            let mut rest = piece.range;
            while !rest.is_empty() {
                let take = SectorCount(rest.count.0.min(most - batched.0));
                let range = SectorRange::new(rest.start, take);
                batch.push(CopyPiece { disk: piece.disk.clone(), range });
                batched += take;
                rest = SectorRange::new(rest.start + take, rest.count - take);
                if batched.0 == most {
                    let what = (job, may_write);
                    self.copy_batch(env, &batch, what, (start, batched), &mut times).await?;
                    start += batched;
                    batched = SectorCount::ZERO;
                    batch.clear();
                }
            }
        }
        self.copy_batch(env, &batch, (job, may_write), (start, batched), &mut times).await?;
        Ok(times)
    }

    async fn copy_batch(
        &self,
        env: &Env,
        batch: &[CopyPiece],
        (job, may_write): (&CopyJob, &impl AsyncFn() -> IoResult),
        (start, count): (Sector, SectorCount),
        times: &mut CopyTimes,
    ) -> Result<(), CopyError> {
        if count == SectorCount::ZERO {
            return Ok(());
        }
        let grant = self.grant(count.to_bytes()).await;
        if job.flags.is_empty() {
            may_write().await.map_err(CopyError::Write)?;
            if let Some(copied) = copy_at_once(env, batch, &job.to, start) {
                return copied;
            }
        }
        let began = env.now();
        let data = grant.read(env, batch).await.map_err(CopyError::Read)?;
        let read = env.now();
        may_write().await.map_err(CopyError::Write)?;
        let to = SectorRange::new(start, count);
        data.write(env, &job.to, to, job.flags).await.map_err(CopyError::Write)?;
        times.read += read.since(began);
        times.write += env.now().since(read);
        Ok(())
    }
}

/// Has the disks copy the pieces; `None` if one of them cannot be copied that way.
fn copy_at_once(
    env: &Env,
    pieces: &[CopyPiece],
    to: &Arc<dyn Disk>,
    mut start: Sector,
) -> Option<Result<(), CopyError>> {
    for piece in pieces {
        if let Err(error) = env.copy((&piece.disk, piece.range), (to, start))? {
            return Some(Err(error));
        }
        start += piece.range.count;
    }
    Some(Ok(()))
}

fn sectors_of(pieces: &[CopyPiece]) -> SectorCount {
    pieces.iter().fold(SectorCount::ZERO, |sum, piece| sum + piece.range.count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic = "B1"]
    fn bytes_that_nobody_gave_back_are_noticed() {
        let copier = Copier::new(64);
        copier.budget.lock().check_state(64);
        copier.budget.lock().free_bytes -= 1;
        copier.budget.lock().check_state(64);
    }
}

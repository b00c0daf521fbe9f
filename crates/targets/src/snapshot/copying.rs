//! Copies chunks before they change: one read of the origin for every snapshot that needs it.
//!
//! Requests that found a chunk without an exception are *wants*. Those that arrive within one turn
//! of a reactor are copied as one job. The job takes its budget, claims the chunks that are still
//! missing in each snapshot, allocates, and reads their union once. It writes every snapshot's
//! chunks (which the allocation made adjacent) in as few requests as possible, and commits.
//!
//! Order of a job, each step before the next:
//! 1. budget (a job that waits for it holds nothing);
//! 2. claims and allocation;
//! 3. reads and writes, in pieces of the budget, or copies by the disks themselves;
//! 4. the budget returns;
//! 5. commits;
//! 6. the origin's readers have left.
//!
//! A write to the snapshot continues after 5, a write to the origin after 6. Until then the origin
//! holds the data: what the COW device may have lost before its commit is copied again.
//!
//! A write to the snapshot for which the file system beneath the COW device has no room fails
//! alone. One to the origin ends the snapshot.
//!
//! A write to the origin that finds the store full ends the snapshot, or waits for the store to
//! grow if the snapshot's table says so. It waits after 6 and holds nothing; then it is mapped
//! again. A suspend hands it back, and the end of the server fails it.

use std::sync::Arc;

use cairn_block::sync::atomic::{AtomicBool, Ordering};
use cairn_block::sync::{Mutex, Padded};
use cairn_block::{
    CopyError, CopyGrant, CopyPiece, Env, Flags, Io, IoError, IoResult, RequestId, Sector,
    SectorCount, SectorRange, Segs,
};
use cairn_format::snapshot::Record;
use futures_util::future::join_all;

use super::canary::{self, Bug};
use super::core::{Core, Failed, InUse, NO_SPACE, SHUTDOWN, Waited, wake};
use super::kin::Kin;
use super::store::{Batch, News};
use super::table::{Bell, Claim, Until, Waiter};
use cairn_block::TaskGroup;

/// Most memory of one job.
const JOB_BYTES: u64 = 1 << 20;

/// The waiter of a want.
#[derive(Clone)]
pub(super) enum Wanter {
    /// A parked request, to be mapped again.
    Request(RequestId),
    /// A task, to look again.
    Bell(Arc<Bell>),
}

impl From<Wanter> for Waiter {
    fn from(wanter: Wanter) -> Waiter {
        match wanter {
            Wanter::Request(id) => Waiter::Request(id),
            Wanter::Bell(bell) => Waiter::Bell(bell),
        }
    }
}

/// A range of the origin that is to be copied before it changes.
pub(super) struct Want {
    pub by: Wanter,
    pub range: SectorRange,
}

/// The wants of one target, gathered per reactor.
pub(super) struct Copying {
    kin: Arc<Kin>,
    tasks: Arc<TaskGroup>,
    until: Until,
    rows: Box<[Padded<Mutex<Vec<Want>>>]>,
    /// Requests that wait for room are handed back.
    hands_back: AtomicBool,
}

impl Copying {
    pub fn new(env: &Env, kin: Arc<Kin>, tasks: Arc<TaskGroup>, until: Until) -> Arc<Copying> {
        let rows = (0..env.post().reactors()).map(|_| Padded::default()).collect();
        Arc::new(Copying { kin, tasks, until, rows, hands_back: AtomicBool::new(false) })
    }

    /// From now on, or from now on no more, what waits for room is handed back.
    pub fn set_hands_back(&self, hands_back: bool) {
        self.hands_back.store(hands_back, Ordering::Release);
    }

    /// True if no request may wait for room.
    pub fn gives_up(&self, env: &Env) -> bool {
        self.hands_back.load(Ordering::Acquire) || env.is_ending()
    }

    /// Copies the missing chunks in `only` (or every snapshot), then wakes the wanter, which looks
    /// again.
    pub fn want(self: &Arc<Copying>, env: &Env, want: Want, only: Option<&Arc<Core>>) {
        let mut wants = self.rows[usize::from(env.reactor().0)].0.lock();
        wants.push(want);
        let first = wants.len() == 1;
        drop(wants);
        if first {
            let (me, only) = (self.clone(), only.cloned());
            self.tasks.spawn(env, async move |env| me.run_jobs(env, only).await);
        }
    }

    /// Does the jobs of a turn at the same time, the first of them here.
    async fn run_jobs(self: &Arc<Copying>, env: &Env, only: Option<Arc<Core>>) {
        let row = &self.rows[usize::from(env.reactor().0)].0;
        let mut wants = std::mem::take(&mut *row.lock());
        wants.sort_by_key(|want| want.range.start);
        let cores = only.map_or_else(|| self.kin.cores(env), |core| vec![core]);
        let chunk = cores.iter().map(|core| core.chunk_sectors()).max().unwrap_or(1);
        let make = |(wants, bytes)| {
            let (copying, cores) = (self.clone(), cores.clone());
            (Job { copying, cores, wants, until: self.until, short: Vec::new() }, bytes)
        };
        let mut jobs = split(wants, SectorCount(chunk)).into_iter().map(make);
        let (first, first_bytes) = jobs.next().expect("somebody asked for this turn");
        for (job, bytes) in jobs {
            self.tasks.spawn(env, async move |env| job.run(env, bytes).await);
        }
        first.run(env, first_bytes).await;
    }
}

/// Cuts sorted wants into jobs; each with the bytes it needs.
fn split(wants: Vec<Want>, chunk: SectorCount) -> Vec<(Vec<Want>, u64)> {
    let mut jobs: Vec<(Vec<Want>, u64)> = Vec::new();
    let mut end = Sector(0);
    for want in wants {
        let wide = want.range.widen(chunk);
        let fresh = wide.end().0.saturating_sub(wide.start.0.max(end.0)) * 512;
        end = end.max(wide.end());
        match jobs.last_mut() {
            // What lies in chunks that the job copies anyway goes with it.
            Some((wants, bytes)) if fresh == 0 || *bytes + fresh <= JOB_BYTES => {
                wants.push(want);
                *bytes += fresh;
            }
            _ => jobs.push((vec![want], fresh.max(512))),
        }
    }
    jobs
}

/// The part of a job for one snapshot.
struct Share {
    core: Arc<Core>,
    batch: Arc<Batch>,
    failed: Option<Failed>,
    /// The disks have copied it by themselves.
    copied: bool,
    _in_use: InUse,
}

struct Job {
    copying: Arc<Copying>,
    cores: Vec<Arc<Core>>,
    wants: Vec<Want>,
    until: Until,
    /// Snapshots whose store was full.
    short: Vec<Arc<Core>>,
}

/// A piece of the origin in memory.
struct Piece {
    range: SectorRange,
    offset: usize,
}

impl Job {
    async fn run(mut self, env: &Env, bytes: u64) {
        let kin = self.copying.kin.clone();
        let grant = kin.budget.grant(bytes.min(JOB_BYTES)).await;
        let mut parked = vec![false; self.wants.len()];
        let mut shares = Vec::new();
        for core in std::mem::take(&mut self.cores) {
            core.wait_ended().await;
            let in_use = core.enter();
            if core.is_readable() {
                shares.extend(self.take_share(env, core, in_use, &mut parked).await);
            }
        }
        copy(env, &mut shares, grant).await;
        if canary::planted(Bug::OriginBeforeRecord) && self.until == Until::Settled {
            for share in &shares {
                wake(env, share.core.exceptions.publish(&share.batch.records));
                share.core.settle(env, &share.batch.records).await;
            }
            self.tell_wanters(env, &parked);
            self.wants.clear();
            env.sleep(std::time::Duration::from_micros(500)).await;
        }
        let results = join_all(shares.iter_mut().map(|share| share.finish(env, &kin))).await;
        if self.until == Until::Published {
            if results.contains(&Err(NO_SPACE)) {
                self.refuse_wanters(env, &mut parked);
            }
            self.tell_wanters(env, &parked);
        }
        for share in &shares {
            share.core.settle(env, &share.batch.records).await;
        }
        drop(shares);
        if self.until == Until::Settled {
            self.wait_for_room(env, &mut parked).await;
            self.tell_wanters(env, &parked);
        }
    }

    /// Waits until the stores that were full have room, or their snapshots have ended.
    async fn wait_for_room(&self, env: &Env, parked: &mut [bool]) {
        for core in &self.short {
            let waited = core.wait_for_room(env, || self.copying.gives_up(env)).await;
            if waited == Waited::GivenUp {
                return self.hand_back_wanters(env, parked);
            }
        }
    }

    /// Requests that waited for room go back to their devices. Tasks look again, and see that.
    fn hand_back_wanters(&self, env: &Env, parked: &mut [bool]) {
        // A suspend that is called off meanwhile fails nothing either.
        let fails = env.is_ending() && !self.copying.hands_back.load(Ordering::Acquire);
        for (want, parked) in self.wants.iter().zip(parked) {
            match want.by {
                Wanter::Request(id) if !*parked => {
                    *parked = true;
                    match fails {
                        true => env.complete(id, Err(SHUTDOWN)),
                        false => env.hand_back(id),
                    }
                }
                _ => (),
            }
        }
    }

    /// Wakes the wanters that do not wait for another job's copy.
    fn tell_wanters(&self, env: &Env, parked: &[bool]) {
        let free = self.wants.iter().zip(parked).filter(|(_, parked)| !**parked);
        wake(env, free.map(|(want, _)| Waiter::from(want.by.clone())).collect());
    }

    /// There is no room for the writes to a snapshot: these fail, and no other request does.
    fn refuse_wanters(&self, env: &Env, parked: &mut [bool]) {
        for (want, parked) in self.wants.iter().zip(parked) {
            match want.by {
                Wanter::Request(id) if !*parked => {
                    env.complete(id, Err(NO_SPACE));
                    *parked = true;
                }
                _ => (),
            }
        }
    }

    /// Claims the missing chunks of a snapshot, and allocates.
    async fn take_share(
        &mut self,
        env: &Env,
        core: Arc<Core>,
        in_use: InUse,
        parked: &mut [bool],
    ) -> Option<Share> {
        let claimed = self.claim(&core, parked);
        if claimed.is_empty() {
            return None;
        }
        let batch = core.store.allocate(&claimed, self.until);
        core.look_at_fill();
        let got = batch.as_ref().map_or(0, |batch| batch.records.len());
        if got < claimed.len() {
            if self.until == Until::Settled && core.may_wait_for_room() {
                self.short.push(core.clone());
            } else if self.until == Until::Settled || !core.overflow() {
                core.invalidate(env, "no space left").await;
            }
            wake(env, core.exceptions.settle(claimed[got..].iter().copied()));
        }
        Some(Share { core, batch: batch?, failed: None, copied: false, _in_use: in_use })
    }

    /// The chunks that no other job copies, in order.
    fn claim(&self, core: &Core, parked: &mut [bool]) -> Vec<u64> {
        let mut mine: Vec<u64> = Vec::new();
        for (want, parked) in self.wants.iter().zip(parked) {
            let (first, end) = core.chunks_of(want.range);
            for chunk in first..end {
                if *parked || mine.binary_search(&chunk).is_ok() {
                    continue;
                }
                match core.exceptions.claim(chunk, self.until, || Some(want.by.clone().into())) {
                    Claim::Mine => mine.push(chunk),
                    Claim::Busy => *parked = true,
                    Claim::Done => (),
                }
            }
        }
        mine.sort_unstable();
        mine
    }
}

impl Share {
    async fn finish(&mut self, env: &Env, kin: &Kin) -> IoResult {
        loop {
            if let Some(failed) = self.failed.take() {
                return self.core.fail(env, &self.batch, failed).await;
            }
            self.batch.set_done();
            // A commit that failed has ended the snapshot, which concerns no origin.
            if let News::Ended(result) = self.core.commit(env, &self.batch).await {
                return result;
            }
            let bytes = self.batch.records.len() as u64 * self.core.chunk_sectors() * 512;
            let grant = kin.budget.grant(bytes.min(JOB_BYTES)).await;
            self.batch.begin(self.core.cow().failures());
            copy(env, std::slice::from_mut(self), grant).await;
        }
    }

    fn takes_part(&self) -> bool {
        !self.copied && self.failed.is_none() && self.core.is_readable()
    }

    /// Has the disks copy the chunks without a buffer; false if they are to be read and written.
    fn copy_at_once(&mut self, env: &Env) -> bool {
        let core = &self.core;
        for run in self.batch.records.chunk_by(is_one_run) {
            let from = core.origin_range(run[0].old.0, run.len() as u64);
            let to = (core.cow(), core.cow_sector(run[0].new.0));
            match env.copy((&core.origin.disk, from), to) {
                Some(Ok(())) => {}
                Some(Err(CopyError::Write(error))) => {
                    self.failed = Some(Failed::writing(error));
                    return true;
                }
                Some(Err(CopyError::Read(error))) => {
                    self.failed = Some(Failed::reading(&core.origin.argument, error));
                    return true;
                }
                None => return false,
            }
        }
        true
    }

    /// The writes that put the pieces in memory where they belong.
    fn writes(&self, env: &Env, pieces: &[Piece], data: &Segs) -> Vec<(SectorRange, Segs)> {
        let mut writes: Vec<(SectorRange, Segs)> = Vec::new();
        for record in &self.batch.records {
            let chunk = self.core.origin_range(record.old.0, 1);
            let first = pieces.partition_point(|piece| piece.range.end() <= chunk.start);
            for piece in &pieces[first..] {
                let Some(part) = piece.range.intersect(chunk) else { break };
                let to = self.core.cow_sector(record.new.0) + (part.start - chunk.start);
                let offset = piece.offset + (part.start - piece.range.start).to_bytes() as usize;
                let bytes = part.to_bytes() as usize;
                match writes.last_mut() {
                    Some((range, segs)) if range.end() == to => {
                        range.count += part.count;
                        segs.extend(data, offset, bytes);
                    }
                    _ => {
                        let range = SectorRange::new(to, part.count);
                        writes.push((range, data.slice(offset, bytes)));
                    }
                }
            }
        }
        let block = self.core.cow().limits().logical_sectors();
        if let Some((range, segs)) = writes.last_mut() {
            // The origin may end inside a block of the COW device.
            let wide = range.widen(block);
            let missing = (wide.count - range.count).to_bytes() as usize;
            if missing > 0 {
                let zeros = env.buf(missing);
                zeros.write(0, missing, |bytes| bytes.fill(0));
                segs.push(zeros, 0, missing);
                *range = wide;
            }
        }
        writes
    }
}

/// Copies every share's chunks, in pieces of the grant; what fails is noted in the shares.
async fn copy(env: &Env, shares: &mut [Share], mut grant: CopyGrant<'_>) {
    for share in shares.iter_mut() {
        share.copied = share.core.is_readable() && share.copy_at_once(env);
    }
    let Some(first) = shares.first() else { return };
    let origin = first.core.origin.disk.clone();
    let block = shares.iter().map(|share| share.core.cow().limits().logical_sectors().0);
    let block = block.max().unwrap_or(1).max(origin.limits().logical_sectors().0);
    let room = (grant.bytes() / 512 / block).max(1) * block;
    let mut rest = union_of(shares);
    rest.reverse();
    while let Some(pieces) = next_pieces(&mut rest, room) {
        let piece = |piece: &Piece| CopyPiece { disk: origin.clone(), range: piece.range };
        let read = grant.read(env, &pieces.iter().map(piece).collect::<Vec<_>>()).await;
        let data = match read {
            Ok(data) => data,
            Err(error) => {
                for share in shares.iter_mut().filter(|share| !share.copied) {
                    share.failed = Some(Failed::reading(&share.core.origin.argument, error));
                }
                return;
            }
        };
        write_shares(env, shares, &pieces, data.segs()).await;
        grant = data.into_grant();
    }
}

async fn write_shares(env: &Env, shares: &mut [Share], pieces: &[Piece], data: &Segs) {
    let started: Vec<_> = shares
        .iter()
        .map(|share| {
            let writes =
                if share.takes_part() { share.writes(env, pieces, data) } else { Vec::new() };
            let write = |(range, segs)| {
                env.io(share.core.cow(), Io::write(range, segs).with(Flags::BACKGROUND))
            };
            writes.into_iter().map(write).collect::<Vec<_>>()
        })
        .collect();
    for (share, writes) in shares.iter_mut().zip(started) {
        let written = join_all(writes).await.into_iter().collect::<Result<(), IoError>>();
        if let Err(error) = written {
            share.failed = Some(Failed::writing(error));
        }
    }
}

/// True if `next` continues `record` on both disks.
fn is_one_run(record: &Record, next: &Record) -> bool {
    (record.old.0 + 1, record.new.0 + 1) == (next.old.0, next.new.0)
}

/// What has to be read of the origin, each sector once, in order.
fn union_of(shares: &[Share]) -> Vec<SectorRange> {
    let mut ranges: Vec<SectorRange> = shares
        .iter()
        .filter(|share| share.takes_part())
        .flat_map(|share| {
            share.batch.records.iter().map(|record| share.core.origin_range(record.old.0, 1))
        })
        .filter(|range| !range.is_empty())
        .collect();
    ranges.sort_unstable_by_key(|range| range.start);
    let mut union: Vec<SectorRange> = Vec::new();
    for range in ranges {
        match union.last_mut() {
            Some(last) if range.start <= last.end() => {
                *last = SectorRange::between(last.start, last.end().max(range.end()));
            }
            _ => union.push(range),
        }
    }
    union
}

/// Takes up to `room` sectors from the end of `rest`, which is in reverse order.
fn next_pieces(rest: &mut Vec<SectorRange>, room: u64) -> Option<Vec<Piece>> {
    let (mut pieces, mut left, mut offset) = (Vec::new(), room, 0);
    while left > 0
        && let Some(range) = rest.pop()
    {
        let take = SectorCount(range.count.0.min(left));
        if take < range.count {
            rest.push(SectorRange::new(range.start + take, range.count - take));
        }
        pieces.push(Piece { range: SectorRange::new(range.start, take), offset });
        offset += take.to_bytes() as usize;
        left -= take.0;
    }
    (!pieces.is_empty()).then_some(pieces)
}

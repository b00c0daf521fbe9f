//! `snapshot`: verdicts and completions.
//!
//! A read without an exception goes to the origin and is counted as a reader (see `epochs`). A
//! write without one waits for a copy, unless it covers whole chunks: it then fills them itself
//! (see `covering`).

use std::sync::Arc;

use cairn_block::{
    Attribute, Claim, ConfigError, Ctor, Disk, EndIo, Env, Extent, ExtentKind, Io, IoError,
    IoResult, Limits, LocalFuture, Op, Report, Request, Sector, SectorCount, SectorRange, Target,
    Verdict,
};

use super::attachment::Attachment;
use super::config::SNAPSHOT_SPEC;
use super::copying::{Copying, Want, Wanter};
use super::core::{Condition, Core, LOST};
use super::covering::{Cover, Covering};
use super::table::{Locks, Run, Until, WritePlan, stripe_of};
use crate::epochs::Epoch;
use crate::kind::{Constructed, TargetKind};

/// The kind of target `snapshot`.
pub const KIND: TargetKind = TargetKind {
    spec: &SNAPSHOT_SPEC,
    construct: |env, ctor| construct(env, ctor, Locks::Sharded),
};

/// The same with one lock for all exceptions, for the benchmark to compare with.
pub const SINGLE_LOCK_KIND: TargetKind =
    TargetKind { construct: |env, ctor| construct(env, ctor, Locks::Single), ..KIND };

fn construct<'a>(env: &'a Env, ctor: Ctor<'a>, locks: Locks) -> Constructed<'a> {
    Box::pin(async move {
        let mut attachment = Attachment::take(&SNAPSHOT_SPEC, false, env, &ctor).await?;
        attachment.locks = locks;
        let (kin, tasks) = (attachment.kin.clone(), attachment.tasks.clone());
        let covering = Covering::new(env, tasks.clone());
        let copying = Copying::new(env, kin, tasks, Until::Published);
        Ok(Arc::new(Snapshot { attachment, copying, covering }) as Arc<dyn Target>)
    })
}

/// The target.
pub struct Snapshot {
    pub(super) attachment: Attachment,
    copying: Arc<Copying>,
    covering: Arc<Covering>,
}

/// A request as the chunks it touches.
pub(super) struct ChunkSpan {
    /// Its first sector, on the origin.
    pub sector: Sector,
    /// Its first chunk.
    pub chunk: u64,
    /// How many sectors into that chunk it begins.
    pub offset: u64,
    /// How many chunks it touches.
    pub chunks: u64,
    chunk_sectors: u64,
    sectors: u64,
}

impl ChunkSpan {
    pub fn of(core: &Core, start: Sector, range: SectorRange) -> ChunkSpan {
        let sector = start + SectorCount(range.start.0);
        let (chunk, size) = (core.chunk().chunk_of(sector.0).0, core.chunk());
        let (offset, sectors) = (size.offset_in_chunk(sector.0), range.count.0);
        let chunk_sectors = core.chunk_sectors();
        let chunks = (offset + sectors).div_ceil(chunk_sectors);
        ChunkSpan { sector, chunk, offset, chunks, chunk_sectors, sectors }
    }

    /// How many chunks it covers from the first on.
    fn whole(&self) -> u64 {
        if self.offset == 0 { self.sectors / self.chunk_sectors } else { 0 }
    }

    /// Its sectors in the first `count` chunks.
    pub fn head(&self, count: u64) -> SectorCount {
        SectorCount(self.sectors.min(count * self.chunk_sectors - self.offset))
    }
}

impl Snapshot {
    /// The parts of a range of the origin that have an exception: where the snapshot and its
    /// origin may differ. In order; widened to whole chunks, then cut to the range. Reads nothing
    /// from any device.
    ///
    /// # Errors
    /// The snapshot is not live, or its content is lost.
    pub fn changed(&self, range: SectorRange) -> Result<Vec<SectorRange>, IoError> {
        Ok(self.readable_core()?.changed(range))
    }

    fn core(&self) -> &Arc<Core> {
        self.attachment.core()
    }

    /// The core, if the snapshot is or was live and its content is not lost.
    fn readable_core(&self) -> Result<&Arc<Core>, IoError> {
        self.attachment.core_if_live().filter(|core| core.is_readable()).ok_or(IoError::IO)
    }

    fn span(&self, request: &Request) -> ChunkSpan {
        ChunkSpan::of(self.core(), self.attachment.config.start, request.range)
    }

    fn to_origin(&self, span: &ChunkSpan) -> Verdict<'_> {
        Verdict::Remapped { disk: self.attachment.config.origin.disk.as_ref(), sector: span.sector }
    }

    fn to_cow(&self, span: &ChunkSpan, chunk: u64) -> Verdict<'_> {
        let sector = self.core().cow_sector(chunk) + SectorCount(span.offset);
        Verdict::Remapped { disk: self.core().cow().as_ref(), sector }
    }

    fn map_read<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        let (core, span) = (self.core(), self.span(request));
        let epoch = core.readers.announce(env.reactor(), stripe_of(span.chunk));
        // Announced first, so that the task that ends the snapshot waits for this read, or this
        // read sees the end.
        if !core.is_readable() {
            core.readers.leave(env.reactor(), epoch);
            return Verdict::Failed(IoError::IO);
        }
        let Run { cow, count } = core.exceptions.find(span.chunk, span.chunks);
        request.accept(span.head(count));
        match cow {
            Some(chunk) => {
                core.readers.leave(env.reactor(), epoch);
                self.to_cow(&span, chunk)
            }
            None => {
                request.watch(epoch.to_word());
                self.to_origin(&span)
            }
        }
    }

    fn map_write<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        let (core, span) = (self.core(), self.span(request));
        if core.condition() != Condition::Valid {
            return Verdict::Failed(IoError::IO);
        }
        let id = request.id();
        match core.exceptions.plan_write(span.chunk, span.chunks, span.whole(), id) {
            WritePlan::Cow { first, count } => {
                core.losses.writes_in_place();
                request.accept(span.head(count));
                self.to_cow(&span, first)
            }
            WritePlan::Waits => {
                request.accept(span.head(1));
                Verdict::Queued
            }
            WritePlan::Claimed { count } => self.map_claimed(env, request, &span, count),
            WritePlan::Missing => {
                request.accept(span.head(1));
                let range = SectorRange::new(span.sector, span.head(1));
                let want = Want { by: Wanter::Request(id), range };
                self.copying.want(env, want, Some(core));
                Verdict::Queued
            }
        }
    }

    /// A write that covers its chunks: no copy. They are ours already.
    fn map_claimed<'a>(
        &'a self,
        env: &Env,
        request: &mut Request,
        span: &ChunkSpan,
        count: u64,
    ) -> Verdict<'a> {
        request.accept(span.head(count));
        let cover = Cover {
            id: request.id(),
            chunk: span.chunk,
            count,
            zeroes: request.op == Op::WriteZeroes,
            flags: request.flags,
        };
        self.covering.add(env, self.core(), cover);
        Verdict::Queued
    }

    /// Writes to a snapshot that ended are lost: its flushes fail, as reads and writes do.
    fn map_flush<'a>(&'a self, request: &mut Request) -> Verdict<'a> {
        if !self.core().is_readable() {
            return Verdict::Failed(IoError::IO);
        }
        request.watch(0);
        Verdict::Remapped { disk: self.core().cow().as_ref(), sector: Sector(0) }
    }

    /// A failed flush may have dropped what a transient store holds. The flush that found it out
    /// fails before the next request is mapped.
    fn end_lost(&self, env: &Env) {
        let core = self.core().clone();
        self.attachment.tasks.spawn(env, async move |env| core.invalidate(env, LOST).await);
    }

    fn map_discard<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        let (core, span) = (self.core(), self.span(request));
        if !self.attachment.config.discard_zeroes_cow {
            return Verdict::Failed(IoError::UNSUPPORTED);
        }
        if core.condition() != Condition::Valid {
            return Verdict::Failed(IoError::IO);
        }
        let Run { cow, count } = core.exceptions.find(span.chunk, span.chunks);
        let passes_down = self.attachment.config.discard_passdown_origin;
        let Some(chunk) = cow else {
            request.accept(span.head(count));
            return if passes_down { self.to_origin(&span) } else { Verdict::Completed };
        };
        // Whole chunks are zeroed, parts are passed down as they are.
        let whole = span.whole().min(count);
        request.accept(span.head(whole.max(1)));
        if passes_down {
            return self.discard_both(env, request, &span, chunk, whole > 0);
        }
        if whole > 0 {
            request.op = Op::WriteZeroes;
        }
        self.to_cow(&span, chunk)
    }

    fn discard_both<'a>(
        &'a self,
        env: &Env,
        request: &Request,
        span: &ChunkSpan,
        chunk: u64,
        whole: bool,
    ) -> Verdict<'a> {
        let (core, id) = (self.core().clone(), request.id());
        let op = if whole { Op::WriteZeroes } else { Op::Discard };
        let on_cow = core.cow_sector(chunk) + SectorCount(span.offset);
        let (cow, origin) = (
            SectorRange::new(on_cow, request.range.count),
            SectorRange::new(span.sector, request.range.count),
        );
        self.attachment.tasks.spawn(env, async move |env| {
            let zeroed = env.io(core.cow(), Io::on(op, cow)).await;
            let discard = Io::on(Op::Discard, origin);
            let discarded = env.io(&core.origin.disk, discard).await;
            env.complete(id, zeroed.and(discarded));
        });
        Verdict::Queued
    }
}

impl Target for Snapshot {
    fn map<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        match request.op {
            Op::Read => self.map_read(env, request),
            Op::Write | Op::WriteZeroes => self.map_write(env, request),
            Op::Discard => self.map_discard(env, request),
            Op::Flush => self.map_flush(request),
        }
    }

    fn end_io(&self, env: &Env, request: &mut Request, result: IoResult) -> EndIo {
        if request.op == Op::Flush {
            if !self.core().look_at_failures() {
                self.end_lost(env);
            }
            // The snapshot may have ended while the COW device flushed.
            return EndIo::Done(result.and(self.readable_core().map(drop)));
        }
        // Of the others only reads of the origin are watched.
        self.core().readers.leave(env.reactor(), Epoch::of_word(request.word()));
        EndIo::Done(result)
    }

    fn lowers(&self) -> Vec<Arc<dyn Disk>> {
        vec![self.attachment.config.origin.disk.clone(), self.attachment.config.cow.disk.clone()]
    }

    // Failures of the COW device are repaired, or counted by the core. Losses of the origin concern
    // the writers of the origin.

    fn failures(&self) -> u64 {
        0
    }

    fn failures_told(&self) -> u64 {
        0
    }

    fn acknowledge_failures(&self) {}

    fn claims(&self) -> Vec<Claim> {
        self.attachment.claims()
    }

    fn limits(&self, stacked: Limits) -> Limits {
        Limits {
            io_min: stacked.io_min.max(self.attachment.config.chunk.bytes() as u32),
            discard: self.attachment.config.discard_zeroes_cow,
            fast_zero: false,
            read_only: self.attachment.read_only
                || self.attachment.config.cow.disk.limits().read_only,
            ..stacked
        }
    }

    fn resume<'a>(&'a self, env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(self.attachment.resume(env))
    }

    fn suspend<'a>(&'a self, env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(self.attachment.pause(env))
    }

    fn close<'a>(&'a self, env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(async {
            self.attachment.close(env).await;
            Ok(())
        })
    }

    fn report(&self) -> Report {
        self.attachment.report(false)
    }

    fn attributes(&self) -> Vec<Attribute> {
        self.attachment.config.attributes()
    }

    fn table(&self) -> String {
        self.attachment.config.print()
    }

    fn extents<'a>(
        &'a self,
        env: &'a Env,
        range: SectorRange,
    ) -> LocalFuture<'a, Result<Vec<Extent>, IoError>> {
        Box::pin(self.extents_of(env, range))
    }

    fn as_any(&self) -> Option<&dyn std::any::Any> {
        Some(self)
    }
}

impl Snapshot {
    /// The extents of a range: chunks without an exception are as the origin reports, unless an
    /// exception was made during the query. Unlike a read it delays no writer: it looks again
    /// instead of announcing itself.
    async fn extents_of(&self, env: &Env, range: SectorRange) -> Result<Vec<Extent>, IoError> {
        let core = self.readable_core()?;
        let span = ChunkSpan::of(core, self.attachment.config.start, range);
        let run = core.exceptions.find(span.chunk, span.chunks);
        let count = span.head(run.count);
        let data = Ok(vec![Extent { count, kind: ExtentKind::Data }]);
        if run.cow.is_some() {
            return data;
        }
        let found = core.origin.disk.extents(env, SectorRange::new(span.sector, count)).await?;
        // The exceptions of chunks that changed on the origin since were published before the
        // change (I4).
        self.readable_core()?;
        match core.exceptions.find(span.chunk, run.count) {
            Run { cow: None, count } if count >= run.count => Ok(found),
            _ => data,
        }
    }
}

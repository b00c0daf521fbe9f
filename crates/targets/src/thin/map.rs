//! `thin`: verdicts and completions of one volume.
//!
//! Requests for blocks that are mapped and not shared go straight to the data device. Unmapped
//! blocks read as zeros, or as the external origin. A write that covers whole blocks takes data
//! blocks and goes there; the blocks are mapped when it ends. A write that covers part of a block
//! is handled by a task (`fill`).

use std::sync::{Arc, OnceLock};

use cairn_block::sync::MutexGuard;
use cairn_block::{
    Claim, ClaimKind, ConfigError, ConfigKind, Ctor, Disk, EndIo, Env, Extent, ExtentKind,
    FailureCount, Flags, IoError, IoResult, Limits, LocalFuture, Op, Report, Request, Sector,
    SectorCount, SectorRange, SuspendMode, Target, Verdict, mutants,
};
use cairn_format::thin::{DataBlock, DeviceId};

use super::acknowledged::Changed;
use super::arena::GROUP_BLOCKS;
use super::attachment::{Origin, VolumeAttachment, map_blocks};
use super::canary::{self, Bug};
use super::config::{Discards, THIN_SPEC, ThinConfig};
use super::index::{Run, Shard};
use super::pool::{Mode, Pool};
use super::recover::{ThinPool, config_error};
use super::span::BlockSpan;
use super::status;
use super::stock::Taken;
use crate::epochs::Epoch;
use crate::group_commit::Waiter;
use crate::kind::{TargetKind, built};

/// The kind of target `thin`.
pub const KIND: TargetKind =
    TargetKind { spec: &THIN_SPEC, construct: |_, ctor| built(Thin::parse(&ctor)) };

/// The pool that a line names; `None` if it does not exist yet and `must` is not set.
fn pool_of(config: &ThinConfig, must: bool) -> Result<Option<Arc<Pool>>, ConfigError> {
    let device = config.pool.disk.mapped().expect("the parser looked");
    let wrong = |kind, found: &str, expected: &str| {
        let detail = format!("pool: found {found}, expected {expected}");
        Err(ConfigError::new(kind, &config.pool.argument, detail))
    };
    let absent = || wrong(ConfigKind::Busy, "no live pool", "a thin-pool that is active");
    let Some(table) = device.live_table() else {
        return if must { absent() } else { Ok(None) };
    };
    let target = table.lines().first().map(|line| line.target.clone());
    let any = target.as_ref().and_then(|target| target.as_any());
    let Some(target) = any.and_then(|any| any.downcast_ref::<ThinPool>()) else {
        return wrong(ConfigKind::Argument, "another kind of target", "a thin-pool");
    };
    match target.pool() {
        Some(pool) if !must || !device.is_suspended() => Ok(Some(pool)),
        _ if must => absent(),
        _ => Ok(None),
    }
}

/// An external origin that stands on the volume's own pool is refused: the pool would hold its
/// reads back, and wait for the writes that need them.
fn refuse_own_pool(config: &ThinConfig) -> Result<(), ConfigError> {
    let Some(origin) = &config.origin else { return Ok(()) };
    let pool = config.pool.disk.mapped().expect("the parser looked");
    if !origin.disk.mapped().is_some_and(|origin| origin.stands_on(pool.id())) {
        return Ok(());
    }
    let found = "a volume of the same pool";
    let expected = "a device that does not need the pool, or a snapshot in its place";
    Err(ConfigError::argument(&origin.argument, "origin", found, expected))
}

/// The target.
pub(super) struct Thin {
    config: ThinConfig,
    /// The mapped device's own count.
    failures: Arc<FailureCount>,
    /// The first of the chain.
    attachment: OnceLock<Arc<VolumeAttachment>>,
}

/// The bit of a word that tells the epoch.
const PHASE: u64 = 1;
/// The class of a watched request, next to its epoch.
const PLAIN: u64 = 0;
/// A FUA write whose block has a mapping that is not durable. The upper half of the word is the low
/// half of the data device's failure count before it was sent.
const COMMITS: u64 = 2;
/// A write to data blocks that are in a cell: they are mapped when it has ended.
const FILLS: u64 = 4;
/// A flush of the data device, which is in no epoch.
const FLUSHES: u64 = 6;
/// The bits of these.
const CLASS: u64 = 6;

/// The word of a FUA write that is about to be sent and then waits for a commit.
fn committing(pool: &Pool) -> u64 {
    pool.data_disk().failures() << 32 | COMMITS
}

/// The locked shard of a block that is in no cell.
type Locked<'v> = MutexGuard<'v, Shard>;

impl Thin {
    fn parse(ctor: &Ctor<'_>) -> Result<Thin, ConfigError> {
        let config = ThinConfig::parse(ctor)?;
        // If the pool is live, this refuses now what the resume would refuse.
        pool_of(&config, false)?;
        refuse_own_pool(&config)?;
        Ok(Thin { config, failures: ctor.failures.clone(), attachment: OnceLock::new() })
    }

    pub(super) fn attachment(&self) -> &Arc<VolumeAttachment> {
        self.attached().expect("a table serves after its resume")
    }

    fn attached(&self) -> Option<&Arc<VolumeAttachment>> {
        self.attachment.get().map(VolumeAttachment::last)
    }

    /// How many blocks from the first one on show the external origin while they are not mapped.
    pub(super) fn origin_blocks(&self) -> u64 {
        let attachment = self.attachment();
        attachment
            .origin
            .as_ref()
            .map_or(0, |origin| origin.sectors.div_ceil(attachment.pool.block.0))
    }

    pub(super) fn origin(&self) -> Option<&Origin> {
        self.attachment().origin.as_ref()
    }

    /// The request waits at the gate.
    pub(super) fn wait_at_gate<'a>(&'a self, env: &Env, request: &Request) -> Verdict<'a> {
        let attachment = self.attachment();
        attachment
            .wait(env, request, |parked| attachment.pool.park(env, &attachment.volume, parked));
        Verdict::Queued
    }

    /// The request waits until its group is loaded.
    fn wait_for_group<'a>(
        &'a self,
        env: &Env,
        request: &mut Request,
        mut shard: Locked<'_>,
        span: &BlockSpan,
    ) -> Verdict<'a> {
        let (attachment, group) = (self.attachment(), span.block / GROUP_BLOCKS);
        // The parts in other groups are mapped separately.
        let in_group = GROUP_BLOCKS - span.block % GROUP_BLOCKS;
        request.accept(span.head(span.blocks.min(in_group)));
        let must_load = shard.wait_for_group(group, Some(request.id()));
        drop(shard);
        if must_load {
            attachment.pool.load(env, &attachment.volume, group);
        }
        Verdict::Queued
    }

    fn map_read<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        let attachment = self.attachment();
        let span = attachment.span(request.range);
        let mut shard = attachment.volume.map.shard(span.block);
        if attachment.pool.holds_back(&attachment.volume) {
            drop(shard);
            return self.wait_at_gate(env, request);
        }
        if attachment.pool.mode() == Mode::Fail {
            return Verdict::Failed(IoError::IO);
        }
        match attachment.volume.look(&mut shard, span.block, span.blocks) {
            Run::Absent => self.wait_for_group(env, request, shard, &span),
            Run::Hole { count } => {
                drop(shard);
                request.accept(span.head(count));
                self.read_hole(request, &span)
            }
            Run::Mapped { data, count, .. } => {
                let epoch = attachment.pool.epochs.enter(env.reactor(), 0);
                drop(shard);
                request.accept(span.head(count));
                request.watch(PLAIN | epoch.to_word());
                attachment.to_data(&span, data)
            }
        }
    }

    /// Not mapped: the external origin, or zeros.
    fn read_hole<'a>(&'a self, request: &mut Request, span: &BlockSpan) -> Verdict<'a> {
        if let Some(origin) = self.origin()
            && span.sector < origin.sectors
        {
            let there = origin.sectors - span.sector;
            request.accept(SectorCount(request.range.count.0.min(there)));
            let (disk, sector) = (origin.disk.as_ref(), Sector(span.sector));
            return Verdict::Remapped { disk, sector };
        }
        request.segs.zero(0, request.range.to_bytes() as usize);
        Verdict::Completed
    }

    fn map_write<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        let attachment = self.attachment();
        let span = attachment.span(request.range);
        // Data is not read under a lock.
        let alike = alike(attachment, request, &span);
        let mut shard = attachment.volume.map.shard(span.block);
        if attachment.pool.holds_back(&attachment.volume) {
            drop(shard);
            return self.wait_at_gate(env, request);
        }
        if attachment.pool.mode() == Mode::Fail {
            return Verdict::Failed(IoError::IO);
        }
        let clear = shard.clear_of_cells(span.block, span.blocks);
        if clear == 0 {
            shard.wait_for_cell(span.block, request.id());
            request.accept(span.head(1));
            return Verdict::Queued;
        }
        match attachment.volume.look(&mut shard, span.block, clear) {
            Run::Absent => self.wait_for_group(env, request, shard, &span),
            Run::Mapped { data, shared, count } if !shared || canary::planted(Bug::WriteShared) => {
                self.overwrite(env, request, shard, &span, alike, (data, count))
            }
            Run::Mapped { data, count, .. } => {
                let asked = request.op == Op::WriteZeroes;
                let alike = Alike { zeros: alike.zeros && asked, ..alike };
                let count = match self.released(env, request, &mut shard, &span, alike, count) {
                    Released::Blocks(count) => {
                        return self.end_elided(env, request, shard, &span, count);
                    }
                    Released::None(count) => count,
                };
                self.fill(env, request, shard, &span, Some(data), count)
            }
            Run::Hole { count } => self.write_hole(env, request, shard, &span, alike, count),
        }
    }

    /// A write to blocks that are mapped and not shared.
    fn overwrite<'a>(
        &'a self,
        env: &Env,
        request: &mut Request,
        mut shard: Locked<'_>,
        span: &BlockSpan,
        alike: Alike,
        (data, count): (DataBlock, u64),
    ) -> Verdict<'a> {
        let attachment = self.attachment();
        // Most writes cover no whole block.
        let count = match span.whole() {
            0 => count,
            _ => match self.released(env, request, &mut shard, span, alike, count) {
                Released::Blocks(count) => {
                    return self.end_elided(env, request, shard, span, count);
                }
                Released::None(count) => count,
            },
        };
        let epoch = attachment.pool.epochs.enter(env.reactor(), 0);
        let waits = !mutants::skips("thin: wait of a FUA write for its commit");
        let commits = waits && request.is_fua() && shard.is_dirty(attachment.pool.durable());
        drop(shard);
        request.accept(span.head(count));
        if commits {
            // The commit's flush makes the data durable.
            request.flags.remove(Flags::FUA);
        }
        request.watch(if commits { committing(&attachment.pool) } else { PLAIN } | epoch.to_word());
        attachment.to_data(span, data)
    }

    /// A write to blocks that are not mapped.
    fn write_hole<'a>(
        &'a self,
        env: &Env,
        request: &mut Request,
        mut shard: Locked<'_>,
        span: &BlockSpan,
        alike: Alike,
        count: u64,
    ) -> Verdict<'a> {
        let attachment = self.attachment();
        let over_origin = self.origin_blocks().saturating_sub(span.block).min(count);
        if over_origin > 0 {
            // Zeros over an origin are data.
            return self.fill(env, request, shard, span, None, over_origin);
        }
        let count = count.min(alike.count);
        if alike.zeros && attachment.pool.elides_zeroes() {
            return self.end_elided(env, request, shard, span, count);
        }
        if !shard.is_loaded(span.block) {
            // M4: look() knew without the group, but a mapping needs it.
            if span.block / GROUP_BLOCKS * GROUP_BLOCKS < attachment.volume.map.end() {
                return self.wait_for_group(env, request, shard, span);
            }
            let (pool, map) = (&attachment.pool, &attachment.volume.map);
            map.add_empty(&mut shard, span.block, pool.durable());
        }
        let in_group = GROUP_BLOCKS - span.block % GROUP_BLOCKS;
        self.fill(env, request, shard, span, None, count.min(in_group))
    }

    /// Ends a zero write that needs no further work. With FUA it completes after the changes that
    /// it depends on are durable.
    fn end_elided<'a>(
        &'a self,
        env: &Env,
        request: &mut Request,
        shard: Locked<'_>,
        span: &BlockSpan,
        count: u64,
    ) -> Verdict<'a> {
        let attachment = self.attachment();
        // The block may be a hole because of an unmap that is not durable.
        let commits = request.is_fua()
            && shard.is_dirty(attachment.pool.durable())
            && !canary::planted(Bug::ElideWithoutCommit);
        drop(shard);
        request.accept(span.head(count));
        if commits {
            attachment.pool.join_commit(env, Waiter::Request(request.id()));
            return Verdict::Queued;
        }
        Verdict::Completed
    }

    /// A write that needs data blocks for the first `count` blocks: they are not mapped, or shared
    /// (`old` is the first one's).
    fn fill<'a>(
        &'a self,
        env: &Env,
        request: &mut Request,
        mut shard: Locked<'_>,
        span: &BlockSpan,
        old: Option<DataBlock>,
        count: u64,
    ) -> Verdict<'a> {
        let attachment = self.attachment();
        let (pool, volume) = (&attachment.pool, &attachment.volume);
        let mode = pool.mode();
        if !mode.is_writable() {
            return Verdict::Failed(IoError::IO);
        }
        if !mode.provides() {
            return Verdict::Failed(NO_SPACE);
        }
        if !shard.is_loaded(span.block) {
            return self.wait_for_group(env, request, shard, span);
        }
        let is_plain_hole = old.is_none() && span.block >= self.origin_blocks();
        let at_once = is_plain_hole && pool.skips_zeroing() && request.op == Op::Write;
        let want = if at_once { count } else { span.whole().clamp(1, count) };
        let got = match pool.take(env, want) {
            Taken::Blocks(run) => run,
            Taken::NoData => return self.wait_for_data(env, request, shard, span),
            Taken::NoMetadata => {
                drop(shard);
                request.accept(span.head(want));
                attachment.wait(env, request, |parked| pool.crowd(env, parked));
                return Verdict::Queued;
            }
        };
        volume.map.raise_end(span.block + got.count);
        request.accept(span.head(got.count));
        let epoch = pool.epochs.enter(env.reactor(), 0);
        if at_once {
            map_blocks(pool, volume, &mut shard, span.block, got);
            drop(shard);
            let commits = if request.is_fua() { committing(pool) } else { PLAIN };
            request.flags.remove(Flags::FUA);
            request.watch(commits | epoch.to_word());
            return attachment.to_data(span, got.start);
        }
        shard.hold(span.block, got.count, got.start);
        drop(shard);
        if span.whole() > 0 {
            request.flags.remove(Flags::FUA);
            request.watch(FILLS | epoch.to_word());
            return attachment.to_data(span, got.start);
        }
        self.fill_part(env, request, span, (old, got.start), epoch);
        Verdict::Queued
    }

    fn wait_for_data<'a>(
        &'a self,
        env: &Env,
        request: &mut Request,
        shard: Locked<'_>,
        span: &BlockSpan,
    ) -> Verdict<'a> {
        drop(shard);
        let attachment = self.attachment();
        request.accept(span.head(1));
        if attachment.pool.mode() == Mode::OutOfData && attachment.pool.fails_when_full() {
            return Verdict::Failed(NO_SPACE);
        }
        attachment.wait(env, request, |parked| attachment.pool.starve(env, parked));
        Verdict::Queued
    }

    fn map_flush<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        let attachment = self.attachment();
        if attachment.pool.holds_back(&attachment.volume) {
            return self.wait_at_gate(env, request);
        }
        if attachment.pool.mode() == Mode::Fail {
            return Verdict::Failed(IoError::IO);
        }
        // A volume that was rolled back has no change: then the failure count reports the loss
        // (L4).
        if attachment.volume.is_changed() {
            attachment.pool.join_commit(env, Waiter::Request(request.id()));
            return Verdict::Queued;
        }
        request.watch(FLUSHES);
        Verdict::Remapped { disk: attachment.pool.data_disk().as_ref(), sector: Sector(0) }
    }

    /// A write to data blocks in a cell has ended.
    fn end_fill(&self, env: &Env, request: &Request, result: IoResult) -> EndIo {
        let attachment = self.attachment();
        let span = attachment.span(request.range);
        let result = attachment.finish_fill(env, span.block, result);
        if result.is_ok() && request.is_fua() {
            attachment.pool.join_commit(env, Waiter::Request(request.id()));
            return EndIo::Held;
        }
        EndIo::Done(result)
    }
}

/// The error of a write that needs space when there is none.
pub(super) const NO_SPACE: IoError = IoError::new(cairn_block::ErrorKind::NoSpace);

/// What the first blocks of a write have in common.
#[derive(Clone, Copy)]
struct Alike {
    /// They are written with zeros that are to be looked at as such.
    zeros: bool,
    count: u64,
}

/// Whether blocks of zeros were released.
enum Released {
    Blocks(u64),
    None(u64),
}

/// Looks for zeros in a write, no further than its first group.
#[inline(always)]
fn alike(attachment: &VolumeAttachment, request: &Request, span: &BlockSpan) -> Alike {
    if request.op == Op::WriteZeroes || !attachment.pool.detects_zeroes() {
        return Alike { zeros: request.op == Op::WriteZeroes, count: span.blocks };
    }
    let is_zero = |index: u64| {
        let (offset, len) = span.bytes(index);
        request.segs.is_zero(offset, len)
    };
    let zeros = is_zero(0);
    let most = span.blocks.min(GROUP_BLOCKS - span.block % GROUP_BLOCKS);
    let more = (1..most).take_while(|index| is_zero(*index) == zeros).count() as u64;
    Alike { zeros, count: 1 + more }
}

impl Thin {
    /// Unmaps whole mapped blocks that are written with zeros, if that is enabled and can be done
    /// at once.
    fn released(
        &self,
        env: &Env,
        request: &Request,
        shard: &mut Shard,
        span: &BlockSpan,
        alike: Alike,
        count: u64,
    ) -> Released {
        let attachment = self.attachment();
        let pool = &attachment.pool;
        let whole = span.whole().min(count);
        let kept = request.op == Op::WriteZeroes && request.flags.contains(Flags::NO_UNMAP);
        let is_hole_zeros = span.block >= self.origin_blocks() && pool.elides_zeroes();
        if kept || whole == 0 || !is_hole_zeros || !pool.mode().is_writable() {
            return Released::None(count);
        }
        // The rest is written as usual, up to the next zeros.
        let zeros = whole.min(alike.count);
        if !alike.zeros {
            return Released::None(if zeros < whole { zeros } else { count });
        }
        let can = pool.stocks.take_removals(env.reactor(), zeros, &pool.room, &pool.metadata);
        if can == 0 {
            return Released::None(count);
        }
        let stamp = pool.stamp(&attachment.volume);
        for block in span.block..span.block + can {
            shard.change(block, None, stamp, true);
        }
        let range = span.block..span.block + can;
        pool.acknowledge(&Changed::unmapped(attachment.volume.id, range), can);
        Released::Blocks(can)
    }
}

impl Target for Thin {
    fn map<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        match request.op {
            Op::Read => self.map_read(env, request),
            Op::Write | Op::WriteZeroes => self.map_write(env, request),
            Op::Discard => self.map_discard(env, request),
            Op::Flush => self.map_flush(env, request),
        }
    }

    fn prefetch(&self, _env: &Env, at: Sector) {
        if let Some(attachment) = self.attached() {
            attachment.volume.map.prefetch(at.0 / attachment.pool.block.0);
        }
    }

    fn end_io(&self, env: &Env, request: &mut Request, result: IoResult) -> EndIo {
        let (word, attachment) = (request.word(), self.attachment());
        if result.is_err() {
            attachment.pool.look_at_data(env);
        }
        let ended = match word & CLASS {
            FLUSHES => return EndIo::Done(result),
            FILLS => self.end_fill(env, request, result),
            COMMITS if result.is_ok() => {
                attachment.pool.join_commit(env, Waiter::Write(request.id(), (word >> 32) as u32));
                EndIo::Held
            }
            _ => EndIo::Done(result),
        };
        attachment.pool.epochs.leave(env.reactor(), Epoch::of_word(word & PHASE));
        ended
    }

    fn lowers(&self) -> Vec<Arc<dyn Disk>> {
        let origin = self.config.origin.as_ref().map(|origin| origin.disk.clone());
        std::iter::once(self.config.pool.disk.clone()).chain(origin).collect()
    }

    fn part(&self) -> u64 {
        u64::from(self.config.id)
    }

    fn claims(&self) -> Vec<Claim> {
        let origin = self.config.origin.iter().map(|origin| &origin.disk);
        let read = |disk| Claim::from(disk, Sector(0), ClaimKind::Read, "external origin");
        origin.map(read).collect()
    }

    fn limits(&self, stacked: Limits) -> Limits {
        // The origin is only read: one that cannot be written is no hindrance.
        let stacked = Limits { read_only: self.config.pool.disk.limits().read_only, ..stacked };
        let Ok(Some(pool)) = pool_of(&self.config, false) else { return stacked };
        let block = u32::try_from(pool.block.to_bytes()).unwrap_or(0);
        // A request that ends inside a block that is shared or not mapped has the rest of the block
        // copied or zeroed. A preferred size is a power of two, which a block need not be; requests
        // aligned to the largest one that divides it do not cross a boundary of blocks needlessly.
        let aligned = 1u32.checked_shl(block.trailing_zeros()).unwrap_or(0);
        Limits {
            io_min: stacked.io_min.max(aligned),
            io_opt: block,
            discard: pool.discards() != Discards::Ignore,
            fast_zero: stacked.fast_zero || pool.elides_zeroes(),
            ..stacked
        }
    }

    fn resume<'a>(&'a self, env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(async move {
            match self.attached() {
                Some(attachment) if !attachment.has_left() => attachment.serve_again(),
                _ => self.attach(env).await?,
            }
            Ok(())
        })
    }

    fn presuspend(&self, env: &Env, mode: SuspendMode) {
        if mode == SuspendMode::NoFlush
            && let Some(attachment) = self.attached()
        {
            attachment.hand_back(env);
        }
    }

    fn presuspend_undo<'a>(&'a self, _env: &'a Env) -> LocalFuture<'a, ()> {
        self.attached().inspect(|attachment| attachment.serve_again());
        Box::pin(std::future::ready(()))
    }

    fn suspend<'a>(&'a self, env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(async move {
            let Some(attachment) = self.attached() else { return Ok(()) };
            if !attachment.volume.is_changed() || attachment.pool.is_closed() {
                return Ok(());
            }
            attachment.pool.commit(env).await.map_err(|error| attachment.pool.loss_of(error))
        })
    }

    fn close<'a>(&'a self, _env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        // Not at the drop of the last reference to the table.
        self.attached().inspect(|attachment| attachment.leave());
        Box::pin(std::future::ready(Ok(())))
    }

    /// Of the data device, where writes in place are (L3).
    fn failures(&self) -> u64 {
        self.attached().map_or(0, |attachment| {
            attachment.passed_on.count(attachment.pool.data_disk().failures())
        })
    }

    fn failures_told(&self) -> u64 {
        self.attached().map_or(0, |attachment| {
            attachment.passed_on.count(attachment.pool.data_disk().failures_told())
        })
    }

    fn acknowledge_failures(&self) {
        let Some(attachment) = self.attached() else { return };
        let data = attachment.pool.data_disk();
        data.acknowledge_failures(data.failures());
        attachment.pool.told(&self.failures);
    }

    fn report(&self) -> Report {
        match self.attached() {
            Some(attachment) => status::of_volume(&attachment.pool, &attachment.volume),
            None => status::of_fresh_volume(),
        }
    }

    fn table(&self) -> String {
        self.config.print()
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

impl Thin {
    /// Opens the volume, as of now, for a table that begins to serve or goes on after a close.
    async fn attach(&self, env: &Env) -> Result<(), ConfigError> {
        let pool = pool_of(&self.config, true)?.expect("it must be there");
        refuse_own_pool(&self.config)?;
        let id = DeviceId::new(u64::from(self.config.id)).expect("the parser looked");
        let opened = pool.open_volume(env, id, &self.failures).await;
        let volume = opened.map_err(|error| config_error(&self.config.pool, &error))?;
        let origin = self
            .config
            .origin
            .as_ref()
            .map(|origin| Origin { disk: origin.disk.clone(), sectors: origin.disk.sectors().0 });
        let attachment =
            VolumeAttachment::new(pool, volume, origin, &self.failures, self.failures());
        match self.attached() {
            Some(last) => last.go_on(Arc::new(attachment)),
            None => _ = self.attachment.get_or_init(|| Arc::new(attachment)),
        }
        Ok(())
    }

    async fn extents_of(&self, env: &Env, range: SectorRange) -> Result<Vec<Extent>, IoError> {
        let attachment = self.attached().ok_or(IoError::IO)?;
        let span = attachment.span(range);
        let run = loop {
            let run = {
                let mut shard = attachment.volume.map.shard(span.block);
                // A block that a failed pool rolled back is neither data nor a hole: reads of it
                // fail too.
                if attachment.pool.mode() == Mode::Fail {
                    return Err(IoError::IO);
                }
                attachment.volume.look(&mut shard, span.block, span.blocks)
            };
            if run != Run::Absent {
                break run;
            }
            attachment.pool.loaded(env, &attachment.volume, span.block / GROUP_BLOCKS).await?;
        };
        let (count, kind) = match run {
            Run::Mapped { count, .. } => (count, ExtentKind::Data),
            Run::Hole { count } if span.block < self.origin_blocks() => {
                (count.min(self.origin_blocks() - span.block), ExtentKind::Data)
            }
            Run::Hole { count } => (count, ExtentKind::Hole),
            Run::Absent => unreachable!("the loop ends with a group"),
        };
        Ok(vec![Extent { count: span.head(count), kind }])
    }
}

//! `thin`: verdicts and completions of one volume.
//!
//! Whatever is mapped and not shared goes straight to the data device; what is not mapped reads as
//! zeros, or as the external origin. A write that covers blocks takes data blocks, goes there, and
//! the blocks are mapped at its end; what covers a part of a block is a task's (`fill`).

use std::sync::{Arc, OnceLock};

use cairn_block::sync::MutexGuard;
use cairn_block::sync::atomic::{AtomicBool, Ordering};
use cairn_block::{
    Claim, ClaimKind, ConfigError, ConfigKind, Ctor, Disk, EndIo, Env, Extent, ExtentKind, Flags,
    IoError, IoResult, Limits, LocalFuture, Op, Request, Sector, SectorCount, SectorRange,
    SuspendMode, Target, TargetType, Verdict,
};
use cairn_format::thin::{DataBlock, DeviceId, Mapping};

use super::arena::GROUP_BLOCKS;
use super::canary::{self, Bug};
use super::config::{Discards, ThinConfig};
use super::epochs::Phase;
use super::index::{Run, Shard};
use super::place::Place;
use super::pool::{Mode, Parked, Pool};
use super::recover::{ThinPool, config_error};
use super::status;
use super::stock::Taken;
use super::volume::Volume;
use crate::persistent::DataRun;
use crate::waiters::Waiter;

/// The kind of target `thin`.
pub struct ThinType;

impl TargetType for ThinType {
    fn name(&self) -> &'static str {
        "thin"
    }

    fn version(&self) -> [u32; 3] {
        [1, 22, 0]
    }

    fn construct<'a>(
        &'a self,
        _env: &'a Env,
        ctor: Ctor<'a>,
    ) -> LocalFuture<'a, Result<Arc<dyn Target>, ConfigError>> {
        let parsed = ThinConfig::parse(&ctor);
        Box::pin(async move {
            let config = parsed?;
            // What is live may tell now what the resume would.
            pool_of(&config, false)?;
            refuse_own_pool(&config)?;
            let thin = Thin { config, seat: OnceLock::new(), blocks: OnceLock::new() };
            Ok(Arc::new(thin) as Arc<dyn Target>)
        })
    }
}

/// The pool that a line names; none if there is none yet and that is no matter.
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

/// An external origin that stands on the volume's own pool is refused: the pool would hold its reads
/// back, and wait for the writes that need them.
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

/// A table's place at a volume.
pub(super) struct Seat {
    pub pool: Arc<Pool>,
    pub volume: Arc<Volume>,
    tenant: u64,
    /// Losses of the volume that are known since before the table served it.
    known_losses: u32,
    /// What would wait is handed back to the device, which is being suspended.
    handing_back: AtomicBool,
    /// The table serves no more. Who holds it still may look at it, and keeps nobody from deleting
    /// the volume.
    left: AtomicBool,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.leave();
    }
}

/// The external origin of a volume.
#[derive(Clone)]
pub(super) struct Origin {
    pub disk: Arc<dyn Disk>,
    pub sectors: u64,
}

/// What a seat makes known of places: units, and where the external origin ends.
pub(super) struct Blocks {
    pub block_sectors: u64,
    pub origin: Option<Origin>,
}

/// The target.
pub(super) struct Thin {
    config: ThinConfig,
    seat: OnceLock<Arc<Seat>>,
    blocks: OnceLock<Blocks>,
}

/// What a watched request was, beside its phase.
const PLAIN: u64 = 0;
/// A FUA write whose block has a mapping that is not durable.
const COMMITS: u64 = 2;
/// A write to data blocks that are in a cell: they are mapped when it has ended.
const FILLS: u64 = 4;

/// What becomes of a request on a block that is in no cell.
type Locked<'v> = MutexGuard<'v, Shard>;

impl Thin {
    pub(super) fn seat(&self) -> &Arc<Seat> {
        self.seat.get().expect("a table serves after its resume")
    }

    fn blocks(&self) -> &Blocks {
        self.blocks.get().expect("set with the seat")
    }

    pub(super) fn place(&self, range: SectorRange) -> Place {
        Place::of(range, self.blocks().block_sectors)
    }

    /// How many blocks from the first one on show the external origin while they are not mapped.
    pub(super) fn origin_blocks(&self) -> u64 {
        let blocks = self.blocks();
        blocks.origin.as_ref().map_or(0, |origin| origin.sectors.div_ceil(blocks.block_sectors))
    }

    pub(super) fn origin(&self) -> Option<&Origin> {
        self.blocks().origin.as_ref()
    }

    /// The request waits at the gate.
    pub(super) fn wait_at_gate<'a>(&'a self, env: &Env, request: &Request) -> Verdict<'a> {
        let seat = self.seat();
        seat.wait(env, request, |parked| seat.pool.park(env, &seat.volume, parked));
        Verdict::Queued
    }

    /// The request waits until its group is loaded.
    fn wait_for_group<'a>(
        &'a self,
        env: &Env,
        request: &mut Request,
        mut shard: Locked<'_>,
        place: &Place,
    ) -> Verdict<'a> {
        let (seat, group) = (self.seat(), place.block / GROUP_BLOCKS);
        // What lies in other groups goes its own way.
        let in_group = GROUP_BLOCKS - place.block % GROUP_BLOCKS;
        request.accept(place.head(place.blocks.min(in_group)));
        let must_load = shard.wait_for_group(group, Some(request.id()));
        drop(shard);
        if must_load {
            seat.pool.load(env, &seat.volume, group);
        }
        Verdict::Queued
    }

    fn to_data(&self, place: &Place, data: DataBlock) -> Verdict<'_> {
        let pool = &self.seat().pool;
        let sector = pool.data_range(data, 1).start + SectorCount(place.offset);
        Verdict::Remapped { disk: pool.data_disk().as_ref(), sector }
    }

    fn map_read<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        let (seat, place) = (self.seat(), self.place(request.range));
        let mut shard = seat.volume.map.shard(place.block);
        if seat.pool.holds_back(&seat.volume) {
            drop(shard);
            return self.wait_at_gate(env, request);
        }
        if seat.pool.mode() == Mode::Fail {
            return Verdict::Failed(IoError::IO);
        }
        match seat.volume.look(&mut shard, place.block, place.blocks) {
            Run::Absent => self.wait_for_group(env, request, shard, &place),
            Run::Hole { count } => {
                drop(shard);
                request.accept(place.head(count));
                self.read_hole(request, &place)
            }
            Run::Mapped { data, count, .. } => {
                let phase = seat.pool.epochs.enter(env.reactor());
                drop(shard);
                request.accept(place.head(count));
                request.watch(PLAIN | phase.bit());
                self.to_data(&place, data)
            }
        }
    }

    /// Not mapped: the external origin, or zeros.
    fn read_hole<'a>(&'a self, request: &mut Request, place: &Place) -> Verdict<'a> {
        if let Some(origin) = self.origin()
            && place.sector < origin.sectors
        {
            let there = origin.sectors - place.sector;
            request.accept(SectorCount(request.range.count.0.min(there)));
            let (disk, sector) = (origin.disk.as_ref(), Sector(place.sector));
            return Verdict::Remapped { disk, sector };
        }
        request.segs.zero(0, request.range.to_bytes() as usize);
        Verdict::Completed
    }

    fn map_write<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        let (seat, place) = (self.seat(), self.place(request.range));
        // Data is not read under a lock.
        let alike = self.alike(request, &place);
        let mut shard = seat.volume.map.shard(place.block);
        if seat.pool.holds_back(&seat.volume) {
            drop(shard);
            return self.wait_at_gate(env, request);
        }
        if seat.pool.mode() == Mode::Fail {
            return Verdict::Failed(IoError::IO);
        }
        let clear = shard.clear_of_cells(place.block, place.blocks);
        if clear == 0 {
            shard.wait_for_cell(place.block, request.id());
            request.accept(place.head(1));
            return Verdict::Queued;
        }
        match seat.volume.look(&mut shard, place.block, clear) {
            Run::Absent => self.wait_for_group(env, request, shard, &place),
            Run::Mapped { data, shared, count } if !shared || canary::planted(Bug::WriteShared) => {
                self.overwrite(env, request, shard, &place, alike, (data, count))
            }
            Run::Mapped { data, count, .. } => {
                let asked = request.op == Op::WriteZeroes;
                let alike = Alike { zeros: alike.zeros && asked, ..alike };
                let count = match self.released(env, request, &mut shard, &place, alike, count) {
                    Released::Blocks(count) => {
                        return self.end_elided(env, request, shard, &place, count);
                    }
                    Released::None(count) => count,
                };
                self.fill(env, request, shard, &place, Some(data), count)
            }
            Run::Hole { count } => self.write_hole(env, request, shard, &place, alike, count),
        }
    }

    /// A write to blocks that are mapped and not shared.
    fn overwrite<'a>(
        &'a self,
        env: &Env,
        request: &mut Request,
        mut shard: Locked<'_>,
        place: &Place,
        alike: Alike,
        (data, count): (DataBlock, u64),
    ) -> Verdict<'a> {
        let seat = self.seat();
        let count = match self.released(env, request, &mut shard, place, alike, count) {
            Released::Blocks(count) => return self.end_elided(env, request, shard, place, count),
            Released::None(count) => count,
        };
        let phase = seat.pool.epochs.enter(env.reactor());
        let commits = request.is_fua() && shard.is_dirty(seat.pool.durable());
        if request.is_fua() && seat.has_lost() {
            seat.pool.epochs.leave(env.reactor(), phase);
            return Verdict::Failed(IoError::IO);
        }
        drop(shard);
        request.accept(place.head(count));
        if commits {
            // The commit's flush makes the data durable.
            request.flags.remove(Flags::FUA);
        }
        request.watch(if commits { COMMITS } else { PLAIN } | phase.bit());
        self.to_data(place, data)
    }

    /// A write to blocks that are not mapped.
    fn write_hole<'a>(
        &'a self,
        env: &Env,
        request: &mut Request,
        mut shard: Locked<'_>,
        place: &Place,
        alike: Alike,
        count: u64,
    ) -> Verdict<'a> {
        let seat = self.seat();
        let over_origin = self.origin_blocks().saturating_sub(place.block).min(count);
        if over_origin > 0 {
            // Zeros over an origin are data.
            return self.fill(env, request, shard, place, None, over_origin);
        }
        let count = count.min(alike.count);
        if alike.zeros && seat.pool.elides_zeroes() {
            return self.end_elided(env, request, shard, place, count);
        }
        if !shard.is_loaded(place.block) {
            // M4: look() knew without the group, but a mapping needs it.
            if place.block / GROUP_BLOCKS * GROUP_BLOCKS < seat.volume.map.end() {
                return self.wait_for_group(env, request, shard, place);
            }
            let (pool, map) = (&seat.pool, &seat.volume.map);
            map.add_empty(&mut shard, place.block, pool.durable());
        }
        let in_group = GROUP_BLOCKS - place.block % GROUP_BLOCKS;
        self.fill(env, request, shard, place, None, count.min(in_group))
    }

    /// Zeros need nothing, or nothing more: the write is done, except that with FUA it is as
    /// durable as any.
    fn end_elided<'a>(
        &'a self,
        env: &Env,
        request: &mut Request,
        shard: Locked<'_>,
        place: &Place,
        count: u64,
    ) -> Verdict<'a> {
        let seat = self.seat();
        // A block may be a hole because of a removal that is not durable.
        let commits = request.is_fua()
            && shard.is_dirty(seat.pool.durable())
            && !canary::planted(Bug::ElideWithoutCommit);
        drop(shard);
        request.accept(place.head(count));
        if request.is_fua() && seat.has_lost() {
            return Verdict::Failed(IoError::IO);
        }
        if commits {
            seat.pool.join_commit(env, Waiter::Request(request.id()));
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
        place: &Place,
        old: Option<DataBlock>,
        count: u64,
    ) -> Verdict<'a> {
        let seat = self.seat();
        let (pool, volume) = (&seat.pool, &seat.volume);
        let mode = pool.mode();
        if !mode.is_writable() || seat.has_lost() {
            return Verdict::Failed(IoError::IO);
        }
        if !mode.provides() {
            return Verdict::Failed(NO_SPACE);
        }
        if !shard.is_loaded(place.block) {
            return self.wait_for_group(env, request, shard, place);
        }
        let is_plain_hole = old.is_none() && place.block >= self.origin_blocks();
        let at_once = is_plain_hole && pool.skips_zeroing() && request.op == Op::Write;
        let want = if at_once { count } else { place.whole().clamp(1, count) };
        let got = match pool.take(env, want) {
            Taken::Blocks(run) => run,
            Taken::NoData => return self.wait_for_data(env, request, shard, place),
            Taken::NoMetadata => {
                drop(shard);
                request.accept(place.head(want));
                seat.wait(env, request, |parked| pool.crowd(env, parked));
                return Verdict::Queued;
            }
        };
        volume.map.raise_end(place.block + got.count);
        request.accept(place.head(got.count));
        let phase = pool.epochs.enter(env.reactor());
        if at_once {
            map_blocks(pool, volume, &mut shard, place.block, got);
            drop(shard);
            let commits = if request.is_fua() { COMMITS } else { PLAIN };
            request.flags.remove(Flags::FUA);
            request.watch(commits | phase.bit());
            return self.to_data(place, got.start);
        }
        shard.hold(place.block, got.count, got.start);
        drop(shard);
        if place.whole() > 0 {
            request.flags.remove(Flags::FUA);
            request.watch(FILLS | phase.bit());
            return self.to_data(place, got.start);
        }
        self.fill_part(env, request, place, (old, got.start), phase);
        Verdict::Queued
    }

    fn wait_for_data<'a>(
        &'a self,
        env: &Env,
        request: &mut Request,
        shard: Locked<'_>,
        place: &Place,
    ) -> Verdict<'a> {
        drop(shard);
        let seat = self.seat();
        request.accept(place.head(1));
        if seat.pool.mode() == Mode::OutOfData && seat.pool.fails_when_full() {
            return Verdict::Failed(NO_SPACE);
        }
        seat.wait(env, request, |parked| seat.pool.starve(env, parked));
        Verdict::Queued
    }

    fn map_flush<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        let seat = self.seat();
        if seat.pool.holds_back(&seat.volume) {
            return self.wait_at_gate(env, request);
        }
        // In this order: what was rolled back is not changed any more.
        let is_changed = seat.volume.is_changed();
        if seat.has_lost() || seat.pool.mode() == Mode::Fail {
            return Verdict::Failed(IoError::IO);
        }
        if is_changed {
            seat.pool.join_commit(env, Waiter::Request(request.id()));
            return Verdict::Queued;
        }
        Verdict::Remapped { disk: seat.pool.data_disk().as_ref(), sector: Sector(0) }
    }

    /// A write to data blocks in a cell has ended.
    fn end_fill(&self, env: &Env, request: &Request, result: IoResult) -> EndIo {
        let seat = self.seat();
        let place = self.place(request.range);
        let result = seat.finish_fill(env, place.block, result);
        if result.is_ok() && request.is_fua() {
            seat.pool.join_commit(env, Waiter::Request(request.id()));
            return EndIo::Held;
        }
        EndIo::Done(result)
    }
}

/// What a write that needs space is told when there is none.
pub(super) const NO_SPACE: IoError = IoError::new(cairn_block::ErrorKind::NoSpace);

impl Seat {
    /// The table has ended: it is no user of the volume any more.
    fn leave(&self) {
        if !self.left.swap(true, Ordering::AcqRel) {
            self.pool.close_volume(&self.volume);
        }
    }

    fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire)
    }

    /// True if acknowledged writes were rolled back since this table began to serve the volume.
    fn has_lost(&self) -> bool {
        self.volume.losses() != self.known_losses
    }

    /// Has a request wait in one of the pool's lists, unless these are handed back now.
    fn wait(&self, env: &Env, request: &Request, park: impl FnOnce(Parked)) {
        park(Parked { id: request.id(), tenant: self.tenant });
        // After it was parked: whoever set this before may have looked too early.
        if self.handing_back.load(Ordering::Acquire) {
            self.pool.hand_back(env, self.tenant);
        }
    }

    /// Maps the blocks of the cell that begins at `block` to the data blocks that were filled, or
    /// gives those back; then whoever waited for the cell goes on.
    pub(super) fn finish_fill(&self, env: &Env, block: u64, result: IoResult) -> IoResult {
        let (pool, volume) = (&self.pool, &self.volume);
        let mut shard = volume.map.shard(block);
        let (cell, waiters) = shard.release(block);
        let data = DataRun { start: cell.data, count: cell.count };
        // A pool that was rolled back has forgotten the group, and changes nothing any more.
        let result = result.and(if pool.mode().is_writable() { Ok(()) } else { Err(IoError::IO) });
        match result {
            Ok(()) => map_blocks(pool, volume, &mut shard, block, data),
            Err(_) => {
                pool.room.give_back(&pool.ledger, cell.count);
                pool.ledger.allocator().put_back(data);
            }
        }
        drop(shard);
        if result.is_err() {
            pool.space_came();
        }
        waiters.into_iter().for_each(|id| env.remap(id));
        result
    }
}

/// Maps blocks from `block` on to these data blocks, as of now.
fn map_blocks(pool: &Pool, volume: &Volume, shard: &mut Shard, block: u64, data: DataRun) {
    let (time, stamp) = (pool.time.load(Ordering::Acquire), pool.stamp(volume));
    for (at, data) in (block..).zip(data.blocks()) {
        shard.change(at, Some(Mapping { block: data, time }), stamp, false);
    }
}

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

impl Thin {
    /// Looks for zeros in a write, no further than its first group.
    #[inline(always)]
    fn alike(&self, request: &Request, place: &Place) -> Alike {
        if request.op == Op::WriteZeroes || !self.seat().pool.detects_zeroes() {
            return Alike { zeros: request.op == Op::WriteZeroes, count: place.blocks };
        }
        let is_zero = |index: u64| {
            let (offset, len) = place.bytes(index);
            request.segs.is_zero(offset, len)
        };
        let zeros = is_zero(0);
        let most = place.blocks.min(GROUP_BLOCKS - place.block % GROUP_BLOCKS);
        let more = (1..most).take_while(|index| is_zero(*index) == zeros).count() as u64;
        Alike { zeros, count: 1 + more }
    }

    /// Releases whole mapped blocks that are written with zeros, if that is wanted and can be done
    /// at once.
    fn released(
        &self,
        env: &Env,
        request: &Request,
        shard: &mut Shard,
        place: &Place,
        alike: Alike,
        count: u64,
    ) -> Released {
        let seat = self.seat();
        let pool = &seat.pool;
        let whole = place.whole().min(count);
        let kept = request.op == Op::WriteZeroes && request.flags.contains(Flags::NO_UNMAP);
        let is_hole_zeros = place.block >= self.origin_blocks() && pool.elides_zeroes();
        if kept || whole == 0 || !is_hole_zeros || !pool.mode().is_writable() {
            return Released::None(count);
        }
        // What is no whole block of zeros goes the usual way, as far as it is no zeros.
        let zeros = whole.min(alike.count);
        if !alike.zeros {
            return Released::None(if zeros < whole { zeros } else { count });
        }
        let can = pool.stocks.take_removals(env.reactor(), zeros, &pool.room, &pool.ledger);
        if can == 0 {
            return Released::None(count);
        }
        let stamp = pool.stamp(&seat.volume);
        for block in place.block..place.block + can {
            shard.change(block, None, stamp, true);
        }
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

    fn foresee(&self, at: Sector) {
        if let (Some(seat), Some(blocks)) = (self.seat.get(), self.blocks.get()) {
            seat.volume.map.foresee(at.0 / blocks.block_sectors);
        }
    }

    fn end_io(&self, env: &Env, request: &mut Request, result: IoResult) -> EndIo {
        let (word, seat) = (request.word(), self.seat());
        let ended = match word & !1 {
            FILLS => self.end_fill(env, request, result),
            COMMITS if result.is_ok() => {
                seat.pool.join_commit(env, Waiter::Request(request.id()));
                EndIo::Held
            }
            _ => EndIo::Done(result),
        };
        seat.pool.epochs.leave(env.reactor(), Phase::of_bit(word));
        ended
    }

    fn lowers(&self) -> Vec<Arc<dyn Disk>> {
        let origin = self.config.origin.as_ref().map(|origin| origin.disk.clone());
        std::iter::once(self.config.pool.disk.clone()).chain(origin).collect()
    }

    fn claims(&self) -> Vec<Claim> {
        let origin = self.config.origin.iter().map(|origin| &origin.disk);
        let read = |disk| Claim::from(disk, Sector(0), ClaimKind::Read, "external origin");
        origin.map(read).collect()
    }

    fn limits(&self, stacked: Limits) -> Limits {
        let Ok(Some(pool)) = pool_of(&self.config, false) else { return stacked };
        Limits {
            io_opt: u32::try_from(pool.block.to_bytes()).unwrap_or(0),
            discard: pool.discards() != Discards::Ignore,
            fast_zero: stacked.fast_zero || pool.elides_zeroes(),
            ..stacked
        }
    }

    fn resume<'a>(&'a self, env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(async move {
            if let Some(seat) = self.seat.get() {
                seat.handing_back.store(false, Ordering::Release);
                return Ok(());
            }
            let pool = pool_of(&self.config, true)?.expect("it must be there");
            refuse_own_pool(&self.config)?;
            let id = DeviceId::new(u64::from(self.config.id)).expect("the parser looked");
            let opened = pool.open_volume(env, id).await;
            let volume = opened.map_err(|error| config_error(&self.config.pool, &error))?;
            let origin = self.config.origin.as_ref().map(|origin| Origin {
                disk: origin.disk.clone(),
                sectors: origin.disk.sectors().0,
            });
            let block_sectors = pool.block.0;
            let tenant = pool.new_tenant();
            self.blocks.get_or_init(|| Blocks { block_sectors, origin });
            let known_losses = volume.losses();
            let (handing_back, left) = (AtomicBool::new(false), AtomicBool::new(false));
            self.seat.get_or_init(|| {
                Arc::new(Seat { pool, volume, tenant, known_losses, handing_back, left })
            });
            Ok(())
        })
    }

    fn presuspend(&self, env: &Env, mode: SuspendMode) {
        if mode == SuspendMode::NoFlush
            && let Some(seat) = self.seat.get()
        {
            seat.handing_back.store(true, Ordering::Release);
            seat.pool.hand_back(env, seat.tenant);
        }
    }

    fn suspend<'a>(&'a self, env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(async move {
            let Some(seat) = self.seat.get() else { return Ok(()) };
            if seat.volume.is_changed() && !seat.pool.is_closed() {
                // A failure is kept: the volume's flushes fail.
                let _ = seat.pool.commit(env).await;
            }
            Ok(())
        })
    }

    fn close<'a>(&'a self, _env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        // Not when the last who looks at the table lets go of it.
        self.seat.get().inspect(|seat| seat.leave());
        Box::pin(std::future::ready(Ok(())))
    }

    fn status(&self) -> String {
        match self.seat.get() {
            Some(seat) => status::thin_line(&seat.pool, &seat.volume),
            None => "0 -".to_owned(),
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
    async fn extents_of(&self, env: &Env, range: SectorRange) -> Result<Vec<Extent>, IoError> {
        let seat = self.seat.get().ok_or(IoError::IO)?;
        let place = self.place(range);
        let run = loop {
            if seat.has_left() {
                // Nothing is known of the volume any more, and data is always true.
                return Ok(vec![Extent { count: range.count, kind: ExtentKind::Data }]);
            }
            let run = {
                let mut shard = seat.volume.map.shard(place.block);
                // What a failed pool rolled back is neither data nor a hole: reads fail too.
                if seat.pool.mode() == Mode::Fail {
                    return Err(IoError::IO);
                }
                seat.volume.look(&mut shard, place.block, place.blocks)
            };
            if run != Run::Absent {
                break run;
            }
            let loaded = seat.pool.loaded(env, &seat.volume, place.block / GROUP_BLOCKS).await;
            if !seat.has_left() {
                loaded?;
            }
        };
        let (count, kind) = match run {
            Run::Mapped { count, .. } => (count, ExtentKind::Data),
            Run::Hole { count } if place.block < self.origin_blocks() => {
                (count.min(self.origin_blocks() - place.block), ExtentKind::Data)
            }
            Run::Hole { count } => (count, ExtentKind::Hole),
            Run::Absent => unreachable!("the loop ends with a group"),
        };
        Ok(vec![Extent { count: place.head(count), kind }])
    }
}

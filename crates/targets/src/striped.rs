//! `striped`: chunks of the mapped device lie in turn on several lower disks (RAID 0).
//!
//! ```text
//! target   | 0 | 1 | 2 | 3 | 4 | 5 | ...   in chunks
//! stripe 0 | 0 |   | 2 |   | 4 |   |       chunk c lies on stripe c mod n,
//! stripe 1 |   | 1 |   | 3 |   | 5 |       in its row c / n
//! ```
//!
//! Reads and writes are cut at chunks. A discard or write-zeroes that spans several chunks is
//! one contiguous range on each stripe, so it becomes one request per stripe instead of one
//! per chunk; a task waits for them.
//!
//! Promises: every sector of the target has one place; a flush reaches every stripe.

use std::fmt::Write;
use std::future::ready;
use std::sync::Arc;

use cairn_block::sync::atomic::{AtomicU64, Ordering};
use cairn_block::{
    ConfigError, Ctor, Disk, EndIo, Env, ErrorKind, Extent, ExtentKind, Io, IoError, IoResult,
    Limits, LocalFuture, Op, Request, Sector, SectorCount, SectorRange, Target, TargetType,
    Verdict,
};

use crate::area::Area;
use crate::args::{Args, Spec};

/// The words of `striped`. The devices repeat, one field per stripe.
pub const SPEC: Spec = Spec {
    options: &[],
    status_fields: &["#stripes", "device...", "#groups", "health"],
    messages: &[],
};

/// The chunks that one answer to `extents` asks about at most.
const EXTENT_CHUNKS: usize = 256;

/// The kind of target.
pub struct StripedType;

impl TargetType for StripedType {
    fn name(&self) -> &'static str {
        "striped"
    }

    fn version(&self) -> [u32; 3] {
        [1, 6, 0]
    }

    fn construct<'a>(
        &'a self,
        _env: &'a Env,
        ctor: Ctor<'a>,
    ) -> LocalFuture<'a, Result<Arc<dyn Target>, ConfigError>> {
        Box::pin(ready(Striped::parse(&ctor).map(|target| Arc::new(target) as _)))
    }
}

/// Where sectors lie: pure arithmetic.
#[derive(Clone, Copy, Debug)]
struct Layout {
    stripes: u64,
    chunk: SectorCount,
}

impl Layout {
    /// The stripe of a sector, its place there, and how many sectors of the chunk follow,
    /// itself included.
    fn locate(self, sector: Sector) -> (usize, Sector, SectorCount) {
        let (chunk, offset) = (sector.0 / self.chunk.0, sector.0 % self.chunk.0);
        let place = Sector(chunk / self.stripes * self.chunk.0 + offset);
        ((chunk % self.stripes) as usize, place, self.chunk - SectorCount(offset))
    }

    /// How many sectors below `end` lie on `stripe`.
    fn sectors_below(self, stripe: usize, end: Sector) -> Sector {
        let (chunk, offset) = (end.0 / self.chunk.0, end.0 % self.chunk.0);
        let (row, last) = (chunk / self.stripes, (chunk % self.stripes) as usize);
        let in_row = match stripe.cmp(&last) {
            std::cmp::Ordering::Less => self.chunk.0,
            std::cmp::Ordering::Equal => offset,
            std::cmp::Ordering::Greater => 0,
        };
        Sector(row * self.chunk.0 + in_row)
    }

    /// The part of a range that lies on `stripe`; it is contiguous there, and may be empty.
    fn range_on(self, stripe: usize, range: SectorRange) -> SectorRange {
        let begin = self.sectors_below(stripe, range.start);
        SectorRange::between(begin, self.sectors_below(stripe, range.end()))
    }
}

struct Stripe {
    area: Area,
    errors: AtomicU64,
}

struct Striped {
    layout: Layout,
    stripes: Arc<[Stripe]>,
}

impl Striped {
    /// `<#stripes> <chunk_size> [<device> <offset>]...`
    fn parse(ctor: &Ctor<'_>) -> Result<Striped, ConfigError> {
        let mut args = Args::new("striped", ctor);
        let count = args.number("#stripes", 1..=u64::from(u16::MAX))?;
        let chunk = SectorCount(args.number("chunk_size", 1..=u64::from(u32::MAX))?);
        let row = count * chunk.0;
        if !ctor.len.0.is_multiple_of(row) {
            let expected = format!("a multiple of #stripes times chunk_size, {row} sectors");
            return Err(args.refuse("length", ctor.len, &expected));
        }
        let len = SectorCount(ctor.len.0 / count);
        let mut stripes = Vec::new();
        for _ in 0..count {
            let area = args.area("device", "offset", len)?;
            let block = area.disk.limits().logical_sectors();
            if !chunk.0.is_multiple_of(block.0) {
                let expected =
                    format!("a multiple of {}'s logical block, {block} sectors", area.argument);
                return Err(args.refuse("chunk_size", chunk, &expected));
            }
            stripes.push(Stripe { area, errors: AtomicU64::new(0) });
        }
        args.finish()?;
        let layout = Layout { stripes: count, chunk };
        Ok(Striped { layout, stripes: stripes.into() })
    }

    /// Discards or zeroes a range of several chunks: one request per stripe, and a task that
    /// waits for them.
    fn spread(&self, env: &Env, request: &Request) -> Verdict<'_> {
        let (id, op, flags) = (request.id(), request.op, request.flags);
        let (task_env, stripes) = (env.clone(), self.stripes.clone());
        let parts: Vec<_> = (0..stripes.len())
            .map(|stripe| (stripe, self.layout.range_on(stripe, request.range)))
            .filter(|(_, range)| !range.is_empty())
            .collect();
        env.spawn(async move {
            let mut started = Vec::with_capacity(parts.len());
            for (stripe, mut range) in parts {
                let area = &stripes[stripe].area;
                range.start = area.sector(range.start);
                let io = Io::on(op, range).with(flags);
                started.push((stripe, task_env.io(&area.disk, io)));
            }
            let mut result = Ok(());
            for (stripe, ended) in started {
                let ended = ended.await;
                stripes[stripe].note(ended);
                result = result.and(ended);
            }
            task_env.complete(id, result);
        });
        Verdict::Queued
    }
}

impl Stripe {
    /// Remembers that the stripe failed. An operation it does not offer is no failure.
    fn note(&self, result: IoResult) {
        if result.is_err_and(|error| error.kind != ErrorKind::Unsupported) {
            self.errors.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Target for Striped {
    fn map<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        if request.op == Op::Flush {
            let stripe = usize::from(request.flush_copy());
            request.watch(stripe as u64);
            return self.stripes[stripe].area.remap(request);
        }
        let (stripe, place, left) = self.layout.locate(request.range.start);
        if request.range.count > left {
            if matches!(request.op, Op::Discard | Op::WriteZeroes) {
                return self.spread(env, request);
            }
            request.accept(left);
        }
        request.watch(stripe as u64);
        let area = &self.stripes[stripe].area;
        Verdict::Remapped { disk: area.disk.as_ref(), sector: area.sector(place) }
    }

    fn end_io(&self, _env: &Env, request: &mut Request, result: IoResult) -> EndIo {
        self.stripes[request.word() as usize].note(result);
        EndIo::Done(result)
    }

    fn flush_copies(&self) -> u16 {
        self.layout.stripes as u16
    }

    fn lowers(&self) -> Vec<Arc<dyn Disk>> {
        self.stripes.iter().map(|stripe| stripe.area.disk.clone()).collect()
    }

    fn limits(&self, stacked: Limits) -> Limits {
        let chunk = self.layout.chunk.to_bytes();
        let bytes = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        let io_opt = bytes(chunk.saturating_mul(self.layout.stripes));
        Limits { io_min: bytes(chunk).max(stacked.io_min), io_opt, ..stacked }
    }

    /// `<#stripes> <device>... 1 <health>`, where health has a letter per stripe: `A` alive,
    /// `D` had an error.
    fn status(&self) -> String {
        let mut status = self.layout.stripes.to_string();
        for stripe in self.stripes.iter() {
            status = status + " " + &stripe.area.argument;
        }
        status.push_str(" 1 ");
        status.extend(self.stripes.iter().map(
            |stripe| match stripe.errors.load(Ordering::Relaxed) {
                0 => 'A',
                _ => 'D',
            },
        ));
        status
    }

    fn table(&self) -> String {
        let mut table = format!("{} {}", self.layout.stripes, self.layout.chunk);
        for stripe in self.stripes.iter() {
            write!(table, " {}", stripe.area).expect("writing to a string does not fail");
        }
        table
    }

    fn extents<'a>(
        &'a self,
        env: &'a Env,
        range: SectorRange,
    ) -> LocalFuture<'a, Result<Vec<Extent>, IoError>> {
        Box::pin(self.gather_extents(env, range))
    }
}

impl Striped {
    /// Asks each stripe about its chunks, in the order of the range. Stops early where a stripe
    /// answered for less than a chunk, or after [`EXTENT_CHUNKS`].
    async fn gather_extents(&self, env: &Env, range: SectorRange) -> Result<Vec<Extent>, IoError> {
        let (mut extents, mut at) = (Vec::new(), range.start);
        for _ in 0..EXTENT_CHUNKS {
            if at == range.end() {
                break;
            }
            let (stripe, place, left) = self.layout.locate(at);
            let mut missing = left.min(range.end() - at);
            let area = &self.stripes[stripe].area;
            for extent in area.extents(env, SectorRange::new(place, missing)).await? {
                let count = extent.count.min(missing);
                append(&mut extents, count, extent.kind);
                missing -= count;
                at += count;
            }
            if missing > SectorCount::ZERO {
                break;
            }
        }
        Ok(extents)
    }
}

/// Appends a run, joined with the last if it is of the same kind.
fn append(extents: &mut Vec<Extent>, count: SectorCount, kind: ExtentKind) {
    match extents.last_mut() {
        Some(last) if last.kind == kind => last.count += count,
        _ => extents.push(Extent { count, kind }),
    }
}

//! `striped`: chunks of the mapped device alternate between several lower disks (RAID 0).
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

use std::sync::Arc;

use cairn_block::sync::atomic::{AtomicU64, Ordering};
use cairn_block::{
    ConfigError, Ctor, Disk, EndIo, Env, ErrorKind, Extent, ExtentKind, Field, Io, IoError,
    IoResult, Limits, LocalFuture, Nature, Op, Report, Request, Sector, SectorCount, SectorRange,
    Shape, Target, Unit, Value, Verdict,
};

use crate::area::Area;
use crate::args::Args;
use crate::kind::{TargetKind, built};
use crate::spec::{Arg, Spec, Use};

/// The fields of the report. `health` has a letter per stripe: `A` alive, `D` had an error.
const FIELDS: &[Field] = &[
    Field::new("stripes", Unit::None),
    Field::new("devices", Unit::None),
    Field::new("groups", Unit::None),
    Field::new("health", Unit::None),
];

/// What `striped` declares.
pub const SPEC: Spec = Spec {
    status_fields: FIELDS,
    ..Spec::plain(
        "striped",
        [1, 6, 0],
        &[
            Arg::number("#stripes", 1, u16::MAX as u64, "how many devices follow"),
            Arg::number("chunk_size", 1, u32::MAX as u64, "the length of a chunk in sectors"),
            Arg::device("device", Use::Maps, "a device; one per stripe").repeated().gives_length(),
            Arg::offset("offset"),
        ],
    )
};

/// The chunks that one answer to `extents` asks about at most.
const EXTENT_CHUNKS: usize = 256;

/// The kind of target.
pub const KIND: TargetKind =
    TargetKind { spec: &SPEC, construct: |_, ctor| built(Striped::parse(&ctor)) };

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
    args: Args,
    layout: Layout,
    stripes: Arc<[Stripe]>,
}

impl Striped {
    fn parse(ctor: &Ctor<'_>) -> Result<Striped, ConfigError> {
        let args = Args::parse(&SPEC, ctor)?;
        let (count, chunk) = (args.number("#stripes"), SectorCount(args.number("chunk_size")));
        let row = count * chunk.0;
        if !ctor.len.0.is_multiple_of(row) {
            let expected = format!("a multiple of #stripes times chunk_size, {row} sectors");
            return Err(args.refuse("length", ctor.len, &expected));
        }
        let len = SectorCount(ctor.len.0 / count);
        let mut stripes = Vec::new();
        for area in args.areas(len)? {
            let block = area.disk.limits().logical_sectors();
            if !chunk.0.is_multiple_of(block.0) {
                let expected =
                    format!("a multiple of {}'s logical block, {block} sectors", area.argument);
                return Err(args.refuse("chunk_size", chunk, &expected));
            }
            stripes.push(Stripe { area, errors: AtomicU64::new(0) });
        }
        let layout = Layout { stripes: count, chunk };
        Ok(Striped { args, layout, stripes: stripes.into() })
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

    fn remaps(&self, range: SectorRange) -> Option<Vec<(Arc<dyn Disk>, SectorRange)>> {
        let parts = (0..self.stripes.len())
            .map(|stripe| (stripe, self.layout.range_on(stripe, range)))
            .filter(|(_, range)| !range.is_empty());
        Some(parts.map(|(stripe, range)| self.stripes[stripe].area.place(range)).collect())
    }

    fn nature(&self) -> Nature {
        let parts = self.stripes.iter().map(|stripe| stripe.area.disk.nature());
        Nature::of_parts(parts, Shape::Striped { chunk: self.layout.chunk })
    }

    fn limits(&self, stacked: Limits) -> Limits {
        let chunk = self.layout.chunk.to_bytes();
        let bytes = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        let io_opt = bytes(chunk.saturating_mul(self.layout.stripes));
        Limits { io_min: bytes(chunk).max(stacked.io_min), io_opt, ..stacked }
    }

    fn report(&self) -> Report {
        let names = self.stripes.iter().map(|stripe| stripe.area.argument.clone()).collect();
        let letter = |stripe: &Stripe| match stripe.errors.load(Ordering::Relaxed) {
            0 => 'A',
            _ => 'D',
        };
        let health = self.stripes.iter().map(letter).collect();
        let stripes = Value::Gauge(self.stripes.len() as u64);
        let values = [stripes, Value::Names(names), Value::Gauge(1), Value::Names(vec![health])];
        Report::new(FIELDS, values)
    }

    fn table(&self) -> String {
        self.args.to_string()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{OneVolume, SECTOR, drive_options, initial, range};
    use cairn_sim::{DriveOptions, Fault, OpSet};
    use proptest::prelude::{Strategy, any, prop_oneof};
    use proptest::{collection, prop_assert, prop_assert_eq, proptest};

    /// The reference model: assigns sector after sector, chunk by chunk.
    fn deal(stripes: usize, chunk: u64, sectors: u64) -> Vec<(usize, Sector)> {
        let (mut filled, mut places) = (vec![0; stripes], Vec::new());
        let mut stripe = 0;
        while (places.len() as u64) < sectors {
            for _ in 0..chunk {
                places.push((stripe, Sector(filled[stripe])));
                filled[stripe] += 1;
            }
            stripe = (stripe + 1) % stripes;
        }
        places.truncate(sectors as usize);
        places
    }

    #[test]
    fn a_volume_is_volatile_if_a_disk_is_and_tells_how_it_is_put_together() {
        let durable = |name| DriveOptions { volatile_cache: false, ..drive_options(name) };
        let drives = [durable("a"), durable("b"), drive_options("c")];
        let test = OneVolume::with_options(drives.map(|options| (options, 64)));
        let striped = Shape::Striped { chunk: SectorCount(8) };
        for (table, volatile, shape) in [
            ("0 64 striped 2 8 a 0 b 0", false, striped),
            ("0 64 striped 2 8 a 0 c 0", true, striped),
            ("0 32 linear a 0\n32 32 linear b 0", false, Shape::Linear),
            ("0 32 linear a 0\n32 32 linear c 0", true, Shape::Linear),
            ("0 64 linear a 0", false, Shape::Unknown),
            ("0 64 passthrough a 0", true, Shape::Unknown),
        ] {
            test.load(table);
            assert_eq!(
                test.volume.nature(),
                Nature { rotational: None, volatile, shape },
                "{table}"
            );
        }
    }

    proptest! {
        #[test]
        fn every_sector_lies_where_dealing_out_chunks_puts_it(
            stripes in 1..9_usize, chunk in 1..20_u64, start in 0..500_u64, count in 0..500_u64,
        ) {
            let layout = Layout { stripes: stripes as u64, chunk: SectorCount(chunk) };
            let places = deal(stripes, chunk, start + count);
            for (sector, place) in places.iter().enumerate() {
                let (stripe, lies, left) = layout.locate(Sector(sector as u64));
                prop_assert_eq!((stripe, lies), *place);
                prop_assert!(left.0 == chunk - sector as u64 % chunk);
            }
            let whole = SectorRange::new(Sector(start), SectorCount(count));
            for stripe in 0..stripes {
                let part = layout.range_on(stripe, whole);
                let dealt: Vec<_> = places[start as usize..]
                    .iter()
                    .filter(|(own, _)| *own == stripe)
                    .map(|(_, place)| place.0)
                    .collect();
                let ranged: Vec<_> = (part.start.0..part.end().0).collect();
                prop_assert_eq!(ranged, dealt);
            }
        }
    }

    const LEN: u64 = 120;

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, u64, u8),
        Zero(u64, u64),
        Read(u64, u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let range =
            || (0..LEN).prop_flat_map(|start| (0..LEN - start).prop_map(move |n| (start, n + 1)));
        let step = prop_oneof![
            (range(), any::<u8>())
                .prop_map(|((start, count), byte)| Step::Write(start, count, byte)),
            range().prop_map(|(start, count)| Step::Zero(start, count)),
            range().prop_map(|(start, count)| Step::Read(start, count)),
        ];
        collection::vec(step, 1..20)
    }

    proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(64))]
        #[test]
        fn the_volume_is_the_dealt_out_drives(steps in steps()) {
            let test = OneVolume::new(&[("a", 64), ("b", 64), ("c", 64)]);
            test.load("0 120 striped 3 4 a 0 b 8 c 24");
            let lowers = [("a", 0), ("b", 8), ("c", 24)];
            let mut drives = lowers.map(|(name, _)| initial(name, 64));
            let places: Vec<(usize, usize)> = deal(3, 4, LEN)
                .iter()
                .map(|(stripe, place)| (*stripe, place.0 as usize + lowers[*stripe].1))
                .collect();
            for step in steps {
                let (start, count, byte) = match step {
                    Step::Write(start, count, byte) => {
                        test.write(start, count, byte).unwrap();
                        (start, count, Some(byte))
                    }
                    Step::Zero(start, count) => {
                        test.on(Op::WriteZeroes, start, count).unwrap();
                        (start, count, Some(0))
                    }
                    Step::Read(start, count) => (start, count, None),
                };
                let mut expected = Vec::new();
                for (stripe, place) in &places[start as usize..(start + count) as usize] {
                    let sector = &mut drives[*stripe][place * SECTOR..(place + 1) * SECTOR];
                    byte.inspect(|byte| sector.fill(*byte));
                    expected.extend_from_slice(sector);
                }
                prop_assert!(test.read(start, count).unwrap() == expected);
            }
            for ((name, _), drive) in lowers.iter().zip(&drives) {
                prop_assert!(test.contents(name) == *drive, "drive {name}");
            }
        }
    }

    #[test]
    fn a_flush_reaches_every_stripe() {
        for failing in ["a", "b", "c"] {
            let test = OneVolume::new(&[("a", 64), ("b", 64), ("c", 64)]);
            test.load("0 120 striped 3 4 a 0 b 0 c 0");
            test.on(Op::Flush, 0, 0).unwrap();
            test.drive(failing).faults().add(Fault::error(OpSet::FLUSHES));
            assert!(test.on(Op::Flush, 0, 0).is_err(), "{failing}");
        }
    }

    #[test]
    fn a_stripe_that_failed_is_shown_as_dead() {
        let test = OneVolume::new(&[("a", 64), ("b", 64), ("c", 64)]);
        test.load("0 120 striped 3 4 a 0 b 8 c 24");
        assert_eq!(test.target().status(), "3 a b c 1 AAA");
        test.drive("b").faults().add(Fault::error(OpSet::ALL).shots(1));
        test.read(0, 4).unwrap();
        assert_eq!(test.target().status(), "3 a b c 1 AAA");
        test.read(0, 12).unwrap_err();
        assert_eq!(test.target().status(), "3 a b c 1 ADA");
        test.drive("c").faults().add(Fault::error(OpSet::ALL).shots(1));
        test.on(Op::Discard, 0, 120).unwrap_err();
        assert_eq!(test.target().status(), "3 a b c 1 ADD");
    }

    #[test]
    fn a_long_discard_is_one_request_per_stripe() {
        let test = OneVolume::new(&[("a", 64), ("b", 64), ("c", 64)]);
        test.load("0 120 striped 3 4 a 0 b 0 c 0");
        let before = test.sim.writes();
        test.on(Op::Discard, 1, 118).unwrap();
        assert_eq!(test.sim.writes() - before, 3);
        test.on(Op::Discard, 5, 6).unwrap();
        assert_eq!(test.sim.writes() - before, 5);
    }

    #[test]
    fn chunks_of_holes_and_data_show_as_extents() {
        let test = OneVolume::new(&[("a", 64)]);
        test.fixture.load("hole", "0 64 zero");
        test.load("0 128 striped 2 4 a 0 @hole 0");
        let extents = test.extents(range(2, 12)).unwrap();
        let shape: Vec<_> = extents.iter().map(|extent| (extent.count.0, extent.kind)).collect();
        let (data, hole) = (ExtentKind::Data, ExtentKind::Hole);
        assert_eq!(shape, [(2, data), (4, hole), (4, data), (2, hole)]);
        test.load("0 64 striped 1 4 @hole 0");
        assert_eq!(test.extents(range(1, 63)).unwrap().len(), 1, "equal neighbours are joined");
    }

    #[test]
    fn limits_tell_the_chunk_and_the_row() {
        let test = OneVolume::new(&[("a", 64), ("b", 64)]);
        test.load("0 128 striped 2 8 a 0 b 0");
        let limits = test.volume.limits();
        assert_eq!((limits.io_min, limits.io_opt), (4096, 8192));
    }

    #[test]
    fn the_table_prints_as_it_was_given() {
        let test = OneVolume::new(&[("a", 64), ("b", 64)]);
        test.load("0 96 striped 2 8 a 16 b 0");
        assert_eq!(test.target().table(), "2 8 a 16 b 0");
    }

    #[test]
    fn each_wrong_argument_is_named() {
        let test = OneVolume::new(&[("a", 64), ("b", 64)]);
        for (table, expected) in [
            ("0 96 striped", "striped: #stripes: found nothing"),
            ("0 96 striped 0 8", "striped: #stripes: found '0', expected a number from 1 to 65535"),
            ("0 96 striped 2", "striped: chunk_size: found nothing"),
            ("0 96 striped 2 0 a 0 b 0", "striped: chunk_size: found '0'"),
            (
                "0 97 striped 2 8 a 0 b 0",
                "striped: length: found 97, expected a multiple of #stripes times chunk_size, \
                 16 sectors",
            ),
            ("0 104 striped 2 8 a 0 b 0", "striped: length: found 104"),
            ("0 96 striped 2 8 a 0", "striped: device: found nothing"),
            ("0 96 striped 2 8 a 0 x 0", "x: device: found none"),
            ("0 96 striped 2 8 a 0 b", "striped: offset: found nothing"),
            ("0 96 striped 2 8 a y b 0", "striped: offset: found 'y'"),
            ("0 96 striped 2 8 a 0 b 17", "b: striped offset: found 17 for 48 sectors"),
            ("0 96 striped 2 8 a 0 b 0 c", "striped: trailing words: found 'c'"),
        ] {
            let refusal = test.refusal(table);
            assert!(refusal.starts_with(expected), "{refusal}");
        }
    }

    #[test]
    fn a_chunk_smaller_than_a_logical_block_is_refused() {
        let options = DriveOptions { logical_block: 4096, ..drive_options("a") };
        let test = OneVolume::with_options([(options, 64), (drive_options("b"), 64)]);
        let refusal = test.refusal("0 96 striped 2 4 b 0 a 0");
        let expected = "striped: chunk_size: found 4, expected a multiple of a's logical block";
        assert!(refusal.starts_with(expected), "{refusal}");
    }
}

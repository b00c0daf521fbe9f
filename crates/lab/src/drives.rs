//! Each drive model beside the published rows of its kind.
//!
//! The figures of the models are fixed from these rows alone ([`cairn_sim::drives`]), before any
//! experiment runs on them. A row is good if it lies within [`TOLERANCE_PERCENT`] of the published
//! figure or range.

use cairn_block::{Op, SectorCount};
use cairn_sim::drives::{Hdd, HddFigures, Raid5, Raid5Figures, Ssd, SsdFigures, Timing};
use serde_json::{Value, json};

use crate::load::{Loop, Measured};
use crate::workload::Operation;

/// How far a model may be from a published figure.
pub const TOLERANCE_PERCENT: f64 = 15.0;

/// A measured figure beside a published one.
#[derive(Clone, Debug)]
pub struct Row {
    /// The model.
    pub model: &'static str,
    /// What was measured.
    pub what: &'static str,
    /// The published figure; a range where several are.
    pub published: (f64, f64),
    /// The model's.
    pub value: f64,
    /// Of both.
    pub unit: &'static str,
}

impl Row {
    /// True if the model is close enough.
    pub fn is_inside(&self) -> bool {
        let (low, high) = self.published;
        let off = TOLERANCE_PERCENT / 100.0;
        self.value >= low * (1.0 - off) && self.value <= high * (1.0 + off)
    }

    /// The row as an object.
    pub fn to_json(&self) -> Value {
        json!({
            "model": self.model,
            "what": self.what,
            "published_min": self.published.0,
            "published_max": self.published.1,
            "value": self.value,
            "unit": self.unit,
            "inside": self.is_inside(),
        })
    }
}

/// Sectors of 4 KiB.
const BLOCK: u64 = 8;
/// 4 TB, the drive of the published sorted writeback.
const NEARLINE_SECTORS: u64 = 4_000_000_000_000 / 512;
const SSD_SECTORS: u64 = 1 << 30;

/// All rows.
pub fn rows() -> Vec<Row> {
    let mut rows = hdd_rows();
    rows.extend(sata_rows());
    rows.extend(nvme_rows());
    rows.extend(optane_rows());
    rows.extend(raid5_rows());
    rows
}

fn hdd() -> Hdd {
    Hdd::new(HddFigures::NEARLINE, SectorCount(NEARLINE_SECTORS))
}

/// Random blocks of 4 KiB anywhere below `sectors`.
fn random(op: Op, sectors: u64) -> impl FnMut() -> Operation {
    let mut rng = fastrand::Rng::with_seed(1);
    move || Operation::new(op, rng.u64(..sectors / BLOCK) * BLOCK, BLOCK)
}

/// Operations of `count` sectors one after another.
fn sequential(op: Op, start: u64, count: u64) -> impl FnMut() -> Operation {
    let mut next = start;
    move || {
        next += count;
        Operation::new(op, next - count, count)
    }
}

/// One load on a model that was not used before.
fn measure(
    mut model: impl Timing,
    depth: usize,
    count: u64,
    mut step: impl FnMut() -> Operation,
) -> Measured {
    let mut load = Loop::new(&mut model);
    load.run(depth, count / 10, &mut step);
    load.run(depth, count, &mut step)
}

fn mb_per_second(measured: Measured, sectors: u64) -> f64 {
    measured.per_second() * sectors as f64 * 512.0 / 1e6
}

fn hdd_rows() -> Vec<Row> {
    let row = |what, published, value, unit| Row { model: "hdd", what, published, value, unit };
    let read = |depth| measure(hdd(), depth, 3000, random(Op::Read, NEARLINE_SECTORS));
    let (one, many) = (read(1), read(32));
    let outer = measure(hdd(), 4, 2000, sequential(Op::Read, 0, 256));
    let inner_start = NEARLINE_SECTORS / 1000 * 995;
    let inner = measure(hdd(), 4, 2000, sequential(Op::Read, inner_start, 256));
    let (outer, inner) = (mb_per_second(outer, 256), mb_per_second(inner, 256));
    let sorted = sorted_writeback(HddFigures::NEARLINE, false);
    let seek = hdd_seek();
    vec![
        row("random 4K read, QD1", (13.5, 13.5), one.nanos_each() / 1e6, "ms"),
        row("average seek", (8.2, 8.5), seek, "ms"),
        row("NCQ 32, of QD1", (2.2, 3.0), many.per_second() / one.per_second(), "x"),
        row("sequential read, outer", (180.0, 200.0), outer, "MB/s"),
        row("sequential read, inner of outer", (0.47, 0.47), inner / outer, "x"),
        row(
            "cached random 4K write, QD1",
            (290.0, 350.0),
            cached_writes(HddFigures::NEARLINE, 1),
            "IOPS",
        ),
        row(
            "cached random 4K write, QD32",
            (290.0, 350.0),
            cached_writes(HddFigures::NEARLINE, 32),
            "IOPS",
        ),
        row("sync random 4K write", (21.0, 49.0), hdd_sync(), "ms"),
        row("sorted writeback, 35 M keys of 4K over 4 TB", (1155.0, 1155.0), sorted, "IOPS"),
        row(
            "the same with FUA, of without",
            (0.5, 0.5),
            sorted_writeback(HddFigures::NEARLINE, true) / sorted,
            "x",
        ),
    ]
}

/// The average seek of random reads, in milliseconds.
fn hdd_seek() -> f64 {
    let mut drive = hdd();
    let count = 3000;
    Loop::new(&mut drive).run(1, count, random(Op::Read, NEARLINE_SECTORS));
    drive.used().seek_ns as f64 / count as f64 / 1e6
}

/// Random writes per second while the drive's cache is full.
fn cached_writes(figures: HddFigures, depth: usize) -> f64 {
    let mut drive = Hdd::new(figures, SectorCount(NEARLINE_SECTORS));
    let mut step = random(Op::Write, NEARLINE_SECTORS);
    let mut load = Loop::new(&mut drive);
    // Many at a time fill it, since it empties all the while.
    load.run(32, figures.cache.0 / BLOCK + 2000, &mut step);
    load.run(depth, 3000, &mut step).per_second()
}

/// A random write and a flush, in milliseconds.
fn hdd_sync() -> f64 {
    synchronous(hdd(), NEARLINE_SECTORS, 1000) / 1e6
}

/// Nanoseconds of a random write of 4 KiB and a flush.
fn synchronous(model: impl Timing, sectors: u64, count: u64) -> f64 {
    let mut write = random(Op::Write, sectors);
    let mut is_flush = true;
    let step = move || {
        is_flush = !is_flush;
        if is_flush { Operation::flush() } else { write() }
    };
    2.0 * measure(model, 1, 2 * count, step).nanos_each()
}

/// Writes per second of keys in order, at the density of 35 million keys over the drive: eight
/// stretches over all zones, each with its own drive. 64 are in flight, as the kernel has. The
/// cache is small, so that few writes fill it: the arm sees only its oldest runs in any case.
fn sorted_writeback(figures: HddFigures, is_fua: bool) -> f64 {
    const KEYS: u64 = 35_000_000;
    const STRETCHES: u64 = 8;
    let (per_stretch, warm_up) = (3000, 500);
    let mut rng = fastrand::Rng::with_seed(3);
    let mut nanos = 0;
    for stretch in 0..STRETCHES {
        let length = NEARLINE_SECTORS / KEYS * (per_stretch + warm_up + 64);
        let start = NEARLINE_SECTORS * (2 * stretch + 1) / (2 * STRETCHES);
        let places = 0..per_stretch + warm_up + 64;
        let mut keys: Vec<u64> =
            places.map(|_| (start + rng.u64(..length)) / BLOCK * BLOCK).collect();
        keys.sort_unstable();
        let mut keys = keys.into_iter();
        let mut step = || {
            let key = keys.next().expect("as many keys as operations");
            Operation { is_fua, ..Operation::new(Op::Write, key, BLOCK) }
        };
        let figures = HddFigures { cache: SectorCount(BLOCK * 256), ..figures };
        let mut drive = Hdd::new(figures, SectorCount(NEARLINE_SECTORS));
        let mut load = Loop::new(&mut drive);
        load.run(64, warm_up, &mut step);
        nanos += load.run(64, per_stretch, &mut step).nanos;
    }
    (STRETCHES * per_stretch) as f64 * 1e9 / nanos as f64
}

/// Bandwidth at QD32, in MB/s.
fn bandwidth(figures: SsdFigures, op: Op) -> f64 {
    mb_per_second(measure(Ssd::new(figures, 1), 32, 4000, sequential(op, 0, 256)), 256)
}

/// 4K operations at QD1, in microseconds.
fn latency(figures: SsdFigures, op: Op) -> f64 {
    measure(Ssd::new(figures, 1), 1, 5000, random(op, SSD_SECTORS)).nanos_each() / 1e3
}

/// 4K operations at QD32, per second.
fn iops(figures: SsdFigures, op: Op) -> f64 {
    measure(Ssd::new(figures, 1), 32, 20_000, random(op, SSD_SECTORS)).per_second()
}

/// A write and a flush, in microseconds.
fn sync(figures: SsdFigures) -> f64 {
    synchronous(Ssd::new(figures, 1), SSD_SECTORS, 2000) / 1e3
}

/// What a flush adds to a write, in milliseconds.
fn flush(figures: SsdFigures) -> f64 {
    (sync(figures) - latency(figures, Op::Write)) / 1e3
}

fn sata_rows() -> Vec<Row> {
    let row =
        |what, published, value, unit| Row { model: "sata-ssd", what, published, value, unit };
    let sata = SsdFigures::SATA;
    let sync_ms = sync(sata) / 1e3;
    let protected = sync(SsdFigures::SATA_PROTECTED);
    vec![
        row("sequential read", (530.0, 560.0), bandwidth(sata, Op::Read), "MB/s"),
        row("sequential write", (530.0, 560.0), bandwidth(sata, Op::Write), "MB/s"),
        row("random 4K read, QD1", (120.0, 120.0), latency(sata, Op::Read), "us"),
        row("random 4K write, QD1", (44.0, 44.0), latency(sata, Op::Write), "us"),
        row("random 4K read, QD32", (64e3, 69e3), iops(sata, Op::Read), "IOPS"),
        row("random 4K write, QD32", (64e3, 69e3), iops(sata, Op::Write), "IOPS"),
        row("sync 4K write", (1.0, 3.0), sync_ms, "ms"),
        row("sync 4K write, protected", (158.0, 158.0), protected, "us"),
    ]
}

fn nvme_rows() -> Vec<Row> {
    let row = |what, published, value, unit| Row { model: "nvme", what, published, value, unit };
    let nvme = SsdFigures::NVME;
    let protected = flush(SsdFigures::NVME_PROTECTED);
    vec![
        row("sequential read", (2400.0, 2400.0), bandwidth(nvme, Op::Read), "MB/s"),
        row("sequential write", (1300.0, 1300.0), bandwidth(nvme, Op::Write), "MB/s"),
        row("random 4K read, QD1", (88.0, 88.0), latency(nvme, Op::Read), "us"),
        row("random 4K write, QD1", (24.0, 24.0), latency(nvme, Op::Write), "us"),
        row("flush, consumer", (0.7, 2.4), flush(nvme), "ms"),
        row("flush, protected", (0.05, 0.05), protected, "ms"),
    ]
}

fn optane_rows() -> Vec<Row> {
    let row = |what, published, value, unit| Row { model: "optane", what, published, value, unit };
    let optane = SsdFigures::OPTANE;
    vec![
        row("sequential read", (2500.0, 2500.0), bandwidth(optane, Op::Read), "MB/s"),
        row("sequential write", (2000.0, 2000.0), bandwidth(optane, Op::Write), "MB/s"),
        row("random 4K read, QD1", (9.0, 10.0), latency(optane, Op::Read), "us"),
        row("random 4K write, QD1", (9.0, 10.0), latency(optane, Op::Write), "us"),
        row("random 4K read, QD32", (500e3, 500e3), iops(optane, Op::Read), "IOPS"),
        row("random 4K write, QD32", (500e3, 500e3), iops(optane, Op::Write), "IOPS"),
    ]
}

fn raid5_rows() -> Vec<Row> {
    let row = |what, published, value, unit| Row { model: "raid5", what, published, value, unit };
    let counts = |members: u64, step: &mut dyn FnMut() -> Operation, count: u64| {
        let drives = (0..members)
            .map(|seed| -> Box<dyn Timing> { Box::new(Ssd::new(SsdFigures::NVME, seed)) });
        let mut array = Raid5::new(Raid5Figures::MD, drives.collect());
        Loop::new(&mut array).run(1, count, step);
        array.used().operations as f64 / count as f64
    };
    let small = |members| counts(members, &mut random(Op::Write, SSD_SECTORS), 500);
    let stripe = 3 * Raid5Figures::MD.chunk.0;
    let whole = counts(4, &mut sequential(Op::Write, 0, stripe), 20);
    vec![
        row("operations of a 4K write, 4 members", (4.0, 4.0), small(4), ""),
        row("operations of a 4K write, 8 members", (4.0, 4.0), small(8), ""),
        row("operations of a whole stripe, 4 members", (4.0, 4.0), whole, ""),
    ]
}

#[cfg(test)]
mod tests {
    use super::{Row, rows};

    #[test]
    fn every_row_is_within_15_percent_of_the_published_figure() {
        let off: Vec<Row> = rows().into_iter().filter(|row| !row.is_inside()).collect();
        assert!(off.is_empty(), "{off:#?}");
    }

    #[test]
    fn figures_repeat_to_the_bit() {
        let bits = || rows().iter().map(|row| row.value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(), bits());
    }

    #[test]
    fn row_is_outside_beyond_15_percent_of_either_end() {
        let row = |value| Row { model: "", what: "", published: (10.0, 20.0), value, unit: "" };
        assert!(row(8.6).is_inside() && row(22.9).is_inside());
        assert!(!row(8.4).is_inside() && !row(23.1).is_inside());
    }
}

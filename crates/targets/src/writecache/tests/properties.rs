//! The target against its reference model, and under concurrent load against the history checker.

use std::sync::Arc;
use std::time::Duration;

use cairn_block::{Disk, Flags, Io, Op, SectorCount, SuspendMode};
use cairn_sim::{DriveModel, Fault, History, Image, OpSet, Workload};
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_oneof};
use proptest::{collection, proptest};

use super::super::model::Model;
use super::fixture::{CacheFixture, cache_sectors, initial, initial_byte, range, table, write_io};
use crate::fixture::Client;

const SECTORS: u64 = 512;

/// What somebody does to the volume; ranges in thousandths of it.
#[derive(Clone, Copy, Debug)]
enum Step {
    Read(u64, u64),
    Write {
        at: u64,
        len: u64,
        byte: u8,
        fua: bool,
    },
    Zero {
        at: u64,
        len: u64,
        fua: bool,
    },
    Discard(u64, u64),
    /// Of one of the clients.
    Flush(usize),
    Message(&'static str),
    Wait(u64),
    Suspend(bool),
    Reload(usize),
    /// The next few operations of one device fail: the origin if true.
    Fail {
        origin: bool,
        how: usize,
        shots: u32,
    },
}

/// How many clients flush.
const CLIENTS: usize = 3;

fn faults() -> [Fault; 4] {
    let [writes, flushes] = [Fault::error(OpSet::WRITES), Fault::error(OpSet::FLUSHES)];
    [writes, flushes, Fault::losing_flushes(), Fault::losing_durable_writes()]
}

/// The cache of one run.
#[derive(Clone, Copy, Debug)]
struct Shape {
    block: u64,
    slots: u64,
    start_sector: u64,
}

const OPTIONS: &[&str] = &[
    "pause_writeback 0",
    "pause_writeback 5 autocommit_time 1",
    "high_watermark 100 low_watermark 0 autocommit_blocks 3 pause_writeback 0",
    "max_age 4 writeback_jobs 2 pause_writeback 1",
    "metadata_only",
    "cleaner pause_writeback 0",
    "autocommit_blocks 0 high_watermark 0 low_watermark 0 pause_writeback 0",
];

fn shapes() -> impl Strategy<Value = Shape> {
    let block = prop_oneof![Just(512u64), Just(1024), Just(4096)];
    (block, 1..70u64, prop_oneof![Just(0u64), Just(1), Just(9)])
        .prop_map(|(block, slots, start_sector)| Shape { block, slots, start_sector })
}

fn steps(failing: bool) -> impl Strategy<Value = Vec<Step>> {
    let len = || prop_oneof![4 => 1..40u64, 1 => 1..1000u64];
    let place = move || (0..1000u64, len());
    let messages =
        prop_oneof![Just("flush"), Just("cleaner"), Just("flush_on_suspend"), Just("clear_stats")];
    let fail = (any::<bool>(), 0..4usize, 1..4u32).prop_map(|(origin, how, shots)| Step::Fail {
        origin,
        how,
        shots,
    });
    let step = prop_oneof![
        20 => (place(), any::<u8>(), any::<bool>())
            .prop_map(|((at, len), byte, fua)| Step::Write { at, len, byte, fua }),
        6 => place().prop_map(|(at, len)| Step::Read(at, len)),
        4 => (place(), any::<bool>()).prop_map(|((at, len), fua)| Step::Zero { at, len, fua }),
        2 => place().prop_map(|(at, len)| Step::Discard(at, len)),
        4 => (0..CLIENTS).prop_map(Step::Flush),
        3 => messages.prop_map(Step::Message),
        3 => (0..8000u64).prop_map(Step::Wait),
        1 => any::<bool>().prop_map(Step::Suspend),
        2 => (0..OPTIONS.len()).prop_map(Step::Reload),
        u32::from(failing) * 2 => fail,
    ];
    collection::vec(step, 1..60)
}

/// The volume, its reference model, and what was done to both.
struct Comparison {
    test: CacheFixture,
    model: Model,
    shape: Shape,
    clients: [Client; CLIENTS],
    /// How many failures of the volume the model knows of.
    failures: u64,
}

impl Comparison {
    fn new(shape: Shape) -> Comparison {
        let cache = cache_sectors(shape.slots, shape.block) + shape.start_sector;
        let test = CacheFixture::of_images(initial(SECTORS), Image::new(SectorCount(cache)), 5);
        let clients = std::array::from_fn(|_| test.client());
        let model = Model::new(SECTORS, initial_byte);
        let mut comparison = Comparison { test, model, shape, clients, failures: 0 };
        comparison.reload(OPTIONS[0]);
        comparison
    }

    fn reload(&mut self, options: &str) {
        let Shape { block, start_sector, .. } = self.shape;
        let options = format!("start_sector {start_sector} {options}");
        let swapped = self.test.swap(&table(SECTORS, block, &options));
        let lost = swapped.is_ok_and(|resumed| resumed.lost.is_some());
        self.after_verb(lost);
    }

    /// Lets requests in again, if a device failed at a resume; what a verb lost counts.
    fn after_verb(&mut self, lost: bool) {
        for _ in 0..20 {
            if !self.test.volume.is_suspended() {
                break;
            }
            let _ = self.test.try_resume();
        }
        assert!(!self.test.volume.is_suspended(), "no device fails so often");
        let counted = self.test.volume.failures() > self.failures;
        assert!(counted || !lost, "who is told by a verb is told by the next flush, too");
    }

    /// What the volume says is lost may be.
    fn follow(&mut self) {
        let failures = self.test.volume.failures();
        if failures != self.failures {
            self.failures = failures;
            self.model.lost();
        }
    }

    fn flush(&mut self, client: usize) -> bool {
        let flushed = self.test.flush_of(&self.clients[client]).is_ok();
        self.follow();
        if flushed {
            self.model.flushed();
        }
        flushed
    }

    /// A range of whole blocks.
    fn place(&self, at: u64, len: u64) -> (u64, u64) {
        let unit = self.shape.block / 512;
        let blocks = SECTORS / unit;
        let start = at * blocks / 1000;
        let count = (len * blocks / 1000).clamp(1, blocks - start);
        (start * unit, count * unit)
    }

    fn step(&mut self, step: Step) {
        let flag = |fua| if fua { Flags::FUA } else { Flags::empty() };
        match step {
            Step::Read(at, len) => self.read(at, len),
            Step::Write { at, len, byte, fua } => {
                let (start, count) = self.place(at, len);
                let write = |env: &_| write_io(env, start, count, byte).with(flag(fua));
                let ok = self.test.io(write).is_ok();
                self.wrote(start, count, byte, ok, fua);
            }
            Step::Zero { at, len, fua } => {
                let (start, count) = self.place(at, len);
                let io = Io::on(Op::WriteZeroes, range(start, count)).with(flag(fua));
                let ok = self.test.io(|_| io).is_ok();
                self.wrote(start, count, 0, ok, fua);
            }
            Step::Discard(at, len) => {
                let (start, count) = self.place(at, len);
                let _ = self.test.on(Op::Discard, start, count);
                self.model.discard(start, count);
            }
            Step::Flush(client) => _ = self.flush(client),
            Step::Message(word) => _ = self.test.message(word),
            Step::Wait(micros) => self.test.run(Duration::from_micros(micros)),
            Step::Suspend(flush) => {
                let mode = if flush { SuspendMode::Flush } else { SuspendMode::NoFlush };
                let lost = self.test.try_suspend(mode).is_err();
                self.after_verb(lost);
            }
            Step::Reload(options) => self.reload(OPTIONS[options]),
            Step::Fail { origin, how, shots } => {
                let drive = if origin { &self.test.origin } else { &self.test.cache };
                // One kind at a time: a write that is refused twice is not known to lose others.
                drive.faults().clear();
                drive.faults().add(faults()[how].shots(shots));
            }
        }
        self.follow();
        self.test.check();
    }

    fn wrote(&mut self, start: u64, count: u64, byte: u8, ok: bool, fua: bool) {
        self.model.write(start, count, byte, ok);
        if ok && fua {
            self.model.flushed_in(start, count);
        }
    }

    fn read(&mut self, at: u64, len: u64) {
        let (start, count) = self.place(at, len);
        match self.test.read(start, count) {
            Ok(bytes) => self.model.read(start, &bytes),
            Err(_) => assert!(self.test.look(|_, state| state.broken), "only then reads may fail"),
        }
    }

    /// Reads everything: as it is, after coming home, and from the origin alone.
    fn end(mut self) {
        self.test.origin.faults().clear();
        self.test.cache.faults().clear();
        // What was under way may still fail; a flush message would be told.
        self.test.run(Duration::from_millis(5));
        self.read(0, 1000);
        // A failure that nobody met yet may break the cache.
        self.flush(0);
        if self.test.look(|_, state| state.broken) {
            self.reload(OPTIONS[0]);
        }
        for client in 0..CLIENTS {
            let told = self.flush(client) || self.flush(client);
            assert!(told, "each is told once, and no device fails any more");
        }
        self.test.message("flush").unwrap();
        assert_eq!((self.test.status().dirty(), self.test.status().error()), (0, 0));
        self.read(0, 1000);
        let durable = self.test.origin.durable().to_vec();
        self.model.read(0, &durable);
        self.test.load(&format!("0 {SECTORS} linear origin 0"));
        let bytes = self.test.read(0, SECTORS).unwrap();
        self.model.read(0, &bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(160))]

    #[test]
    fn sequential_requests_read_as_on_a_plain_volume(shape in shapes(), steps in steps(false)) {
        let mut comparison = Comparison::new(shape);
        for step in steps {
            comparison.step(step);
        }
        comparison.end();
    }

    #[test]
    fn sequential_requests_survive_failing_devices(shape in shapes(), steps in steps(true)) {
        let mut comparison = Comparison::new(shape);
        for step in steps {
            comparison.step(step);
        }
        comparison.end();
    }
}

/// A concurrent workload on a small cache over drives whose operations overtake each other.
fn under_load(seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed);
    let block = [512, 1024, 4096][rng.usize(..3)];
    let cache = cache_sectors(rng.u64(1..80), block);
    let zeros = |sectors| Image::new(SectorCount(sectors));
    let test = CacheFixture::with_model(zeros(SECTORS), zeros(cache), seed, DriveModel::FAST);
    test.load(&table(SECTORS, block, OPTIONS[rng.usize(..OPTIONS.len())]));
    let disk: Arc<dyn Disk> = test.volume.clone();
    let history = History::blank(seed, disk.sectors());
    let running = Workload::mixed(seed, 600).start(&test.sim, &disk, &history);
    while !running.is_done() {
        for _ in 0..rng.u16(1..200) {
            test.sim.step();
        }
        match rng.u8(..16) {
            0 => _ = test.start_message("flush"),
            1 => _ = test.start_message("flush_on_suspend"),
            2 if rng.u8(..4) == 0 => _ = test.start_message("cleaner"),
            _ => test.look(|_, state| state.check_whole()),
        }
        history.verdict().unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
    }
}

#[test]
fn concurrent_requests_read_what_a_disk_may_hold() {
    for seed in 0..120 {
        under_load(seed);
    }
}

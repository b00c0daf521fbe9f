//! `flakey`: like `linear`, but periodically unreliable.
//!
//! From the load of the table line on, the device is up for `up_interval` seconds, then down for
//! `down_interval` seconds, and so on. While it is up, requests pass unchanged. While it is down,
//! the features decide the [`Fate`] of each request; without any feature, every request fails.
//!
//! Promises: a request's fate is decided when it is mapped, so a read that began while the device
//! was up succeeds. The memory of a write is never changed: a copy is corrupted instead. Injected
//! errors are marked as such. The only tasks are those that send corrupted copies; they end with
//! their request.

use std::future::ready;
use std::sync::Arc;

use cairn_block::{
    Attribute, ConfigError, Ctor, Disk, EndIo, Env, ErrorKind, Extent, FailureCount, Flags, Io,
    IoError, IoResult, LocalFuture, Op, Request, SectorRange, Segs, Target, Time, Verdict,
};

use crate::area::Area;
use crate::args::Args;
use crate::kind::{TargetKind, built};
use crate::spec::{Arg, Group, Kind, Opt, Spec, Use};

const SECONDS_MAX: u64 = u32::MAX as u64;

const PROBABILITY: &[Arg] = &[Arg::number("probability", 0, PROBABILITY_BASE, "")];

/// The features, in the kernel's order of printing.
const FEATURES: &[Opt] = &[
    Opt::new("error_reads", &[], "reads fail").once(),
    Opt::new("drop_writes", &[], "writes are told as done and do nothing").once(),
    Opt::new("error_writes", &[], "writes fail").once(),
    Opt::new(
        "corrupt_bio_byte",
        &[
            Arg::number("nth_byte", 1, u32::MAX as u64, ""),
            Arg::word("direction", Kind::Word(&["r", "w"]), ""),
            Arg::number("value", 0, u8::MAX as u64, ""),
            Arg::number("flags", 0, u32::MAX as u64, ""),
        ],
        "a byte of every request of the direction with these bi_opf flags is replaced",
    ),
    Opt::new("random_read_corrupt", PROBABILITY, "so many of 10^9 reads get a random byte"),
    Opt::new("random_write_corrupt", PROBABILITY, "so many of 10^9 writes get a random byte"),
];

/// What `flakey` declares. The group can have all features but one of the two that exclude each
/// other.
pub const SPEC: Spec = Spec {
    group: Group::features(11, true, FEATURES),
    ..Spec::plain(
        "flakey",
        [1, 5, 0],
        &[
            Arg::device("device", Use::Maps, "the device").gives_length(),
            Arg::offset("offset"),
            Arg::number("up_interval", 0, SECONDS_MAX, "how many seconds it is reliable"),
            Arg::number("down_interval", 0, SECONDS_MAX, "how many seconds it is not"),
        ],
    )
};

/// What a probability is a fraction of.
const PROBABILITY_BASE: u64 = 1_000_000_000;

/// A read that `end_io` must corrupt carries this word.
const READ_WHILE_DOWN: u64 = 1;

/// The kind of target.
pub const KIND: TargetKind =
    TargetKind { spec: &SPEC, construct: |env, ctor| built(Flakey::parse(env, &ctor)) };

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

/// Replace one byte of each matching request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CorruptByte {
    /// Counted from 1.
    nth: u64,
    direction: Direction,
    value: u8,
    /// Bits of the kernel's `bi_opf` that a request must have, all of them.
    flags: u64,
}

/// What happens while the device is down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Features {
    drop_writes: bool,
    error_writes: bool,
    error_reads: bool,
    corrupt: Option<CorruptByte>,
    /// In parts of [`PROBABILITY_BASE`].
    random_read: u64,
    random_write: u64,
}

impl Features {
    fn parse(args: &Args) -> Result<Features, ConfigError> {
        let refuse = |found: &str, expected: &str| {
            Err(args.refuse("features", format!("'{found}'"), expected))
        };
        let corrupt = args.numbers("corrupt_bio_byte").map(|[nth, direction, value, flags]| {
            let direction = [Direction::Read, Direction::Write][direction as usize];
            CorruptByte { nth, direction, value: value as u8, flags }
        });
        let [drop_writes, error_writes] =
            ["drop_writes", "error_writes"].map(|word| args.has(word));
        if drop_writes && error_writes {
            return refuse("error_writes", "only one of drop_writes and error_writes");
        }
        let corrupts_writes = corrupt.is_some_and(|c| c.direction == Direction::Write);
        if corrupts_writes && (drop_writes || error_writes) {
            let found = if drop_writes { "drop_writes" } else { "error_writes" };
            return refuse(found, "no 'corrupt_bio_byte' for writes beside it");
        }
        let probability = |option: &str| args.given(option).unwrap_or(0);
        Ok(Features {
            drop_writes,
            error_writes,
            error_reads: args.has("error_reads"),
            corrupt,
            random_read: probability("random_read_corrupt"),
            random_write: probability("random_write_corrupt"),
        })
    }

    /// The fate of a request while the device is down.
    fn fate(&self, op: Op) -> Fate {
        if *self == Features::default() {
            return Fate::Fail;
        }
        match op {
            Op::Read if self.error_reads => Fate::Fail,
            Op::Read => Fate::MayCorruptRead,
            _ if self.drop_writes => Fate::Drop,
            _ if self.error_writes => Fate::Fail,
            Op::Write => Fate::MayCorruptWrite,
            Op::Flush | Op::Discard | Op::WriteZeroes => Fate::Pass,
        }
    }

    /// The bytes of `request` to replace, by their index, with what.
    fn corruption(&self, env: &Env, request: &Request) -> [Option<(usize, u8)>; 2] {
        let (direction, probability) = match request.op {
            Op::Read => (Direction::Read, self.random_read),
            _ => (Direction::Write, self.random_write),
        };
        let bytes = request.range.to_bytes();
        let fixed = self.corrupt.filter(|corrupt| {
            corrupt.direction == direction
                && corrupt.nth <= bytes
                && kernel_flags(request) & corrupt.flags == corrupt.flags
        });
        let fixed = fixed.map(|corrupt| (corrupt.nth as usize - 1, corrupt.value));
        let hit = probability > 0 && env.random_below(PROBABILITY_BASE) < probability;
        let random =
            hit.then(|| (env.random_below(bytes) as usize, env.random_below(1 << 8) as u8));
        [fixed, random]
    }
}

/// The bits that Linux 6.1 would have in `bi_opf` for a request that carries data. Hints that
/// cairn's requests do not have (sync, priority, read-ahead) are never set.
fn kernel_flags(request: &Request) -> u64 {
    const WRITE: u64 = 1;
    const META: u64 = 1 << 12;
    const FUA: u64 = 1 << 17;
    let bits = [
        (request.op == Op::Write, WRITE),
        (request.flags.contains(Flags::META), META),
        (request.flags.contains(Flags::FUA), FUA),
    ];
    bits.iter().filter(|(set, _)| *set).map(|(_, bit)| bit).sum()
}

/// The fate of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Pass,
    Fail,
    /// Reported as done, but it never happened.
    Drop,
    MayCorruptRead,
    MayCorruptWrite,
}

struct Flakey {
    args: Args,
    area: Area,
    up_seconds: u64,
    down_seconds: u64,
    features: Features,
    began: Time,
    /// Of the mapped device.
    failures: Arc<FailureCount>,
}

impl Flakey {
    fn parse(env: &Env, ctor: &Ctor<'_>) -> Result<Flakey, ConfigError> {
        let mut args = Args::parse(&SPEC, ctor)?;
        let area = args.area()?;
        let (up_seconds, down_seconds) = (args.number("up_interval"), args.number("down_interval"));
        if !(1..=SECONDS_MAX).contains(&(up_seconds + down_seconds)) {
            let found = format!("{} with the up_interval", up_seconds + down_seconds);
            return Err(args.refuse("down_interval", found, "a sum from 1 to 4294967295"));
        }
        let features = Features::parse(&args)?;
        // The kernel does not print a probability of 0.
        for option in ["random_read_corrupt", "random_write_corrupt"] {
            if args.given(option) == Some(0) {
                args.set_flag(option, false);
            }
        }
        let (began, failures) = (env.now(), ctor.failures.clone());
        Ok(Flakey { args, area, up_seconds, down_seconds, features, began, failures })
    }

    fn is_down(&self, now: Time) -> bool {
        let seconds = now.since(self.began).as_secs();
        seconds % (self.up_seconds + self.down_seconds) >= self.up_seconds
    }

    /// Sends a corrupted copy of a write in its place.
    fn write_copy(
        &self,
        env: &Env,
        request: &Request,
        corruption: [Option<(usize, u8)>; 2],
    ) -> Verdict<'_> {
        let data = request.segs.slice(0, request.range.to_bytes() as usize);
        let copy = env.segs(request.range.count);
        let mut offset = 0;
        data.for_each(0, data.bytes(), |bytes| {
            copy.copy_in(offset, bytes);
            offset += bytes.len();
        });
        corrupt(&copy, corruption);
        let range = SectorRange::new(self.area.sector(request.range.start), request.range.count);
        let written = env.io(&self.area.disk, Io::write(range, copy).with(request.flags));
        let (id, task_env) = (request.id(), env.clone());
        env.spawn(async move { task_env.complete(id, written.await) });
        Verdict::Queued
    }
}

fn corrupt(segs: &Segs, corruption: [Option<(usize, u8)>; 2]) {
    for (byte, value) in corruption.into_iter().flatten() {
        segs.copy_in(byte, &[value]);
    }
}

impl Target for Flakey {
    fn map<'a>(&'a self, env: &Env, request: &mut Request) -> Verdict<'a> {
        if !self.is_down(env.now()) {
            return self.area.remap(request);
        }
        match self.features.fate(request.op) {
            Fate::Pass => self.area.remap(request),
            Fate::Fail => {
                // The simulated device may have dropped completed writes.
                if request.op == Op::Flush {
                    self.failures.raise();
                }
                Verdict::Failed(IoError::injected(ErrorKind::Io))
            }
            Fate::Drop => Verdict::Completed,
            Fate::MayCorruptRead => {
                request.watch(READ_WHILE_DOWN);
                self.area.remap(request)
            }
            Fate::MayCorruptWrite => match self.features.corruption(env, request) {
                [None, None] => self.area.remap(request),
                corruption => self.write_copy(env, request, corruption),
            },
        }
    }

    fn end_io(&self, env: &Env, request: &mut Request, result: IoResult) -> EndIo {
        if result.is_ok() && request.word() == READ_WHILE_DOWN {
            corrupt(&request.segs, self.features.corruption(env, request));
        }
        EndIo::Done(result)
    }

    fn lowers(&self) -> Vec<Arc<dyn Disk>> {
        vec![self.area.disk.clone()]
    }

    fn remaps(&self, range: SectorRange) -> Option<Vec<(Arc<dyn Disk>, SectorRange)>> {
        Some(vec![self.area.place(range)])
    }

    fn attributes(&self) -> Vec<Attribute> {
        self.args.attributes()
    }

    fn table(&self) -> String {
        self.args.to_string()
    }

    fn extents<'a>(
        &'a self,
        env: &'a Env,
        range: SectorRange,
    ) -> LocalFuture<'a, Result<Vec<Extent>, IoError>> {
        if self.is_down(env.now()) {
            let data = Extent { count: range.count, kind: cairn_block::ExtentKind::Data };
            return Box::pin(ready(Ok(vec![data])));
        }
        self.area.extents(env, range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{OneVolume, SECTOR, initial, range, write_io};
    use cairn_block::{ExtentKind, SectorCount};
    use std::time::Duration;

    fn fixture() -> OneVolume {
        OneVolume::new(&[("a", 64)])
    }

    /// A volume that is down for a long time.
    fn down(features: &str) -> OneVolume {
        let test = fixture();
        test.load(&format!("0 32 flakey a 8 0 1000000 {features}"));
        test
    }

    const INJECTED: IoError = IoError::injected(ErrorKind::Io);

    #[test]
    fn the_device_is_up_and_down_by_turns() {
        let test = fixture();
        test.load("0 32 flakey a 8 2 3");
        let began = test.sim.now();
        for half_seconds in 0..40 {
            let moment = began + Duration::from_millis(500 * half_seconds + 100);
            test.run(moment.since(test.sim.now()));
            let is_up = half_seconds % 10 < 4;
            assert_eq!(test.read(0, 1).is_ok(), is_up, "after {half_seconds} half seconds");
            assert_eq!(test.write(0, 1, 1).is_ok(), is_up);
        }
    }

    #[test]
    fn while_up_it_is_linear() {
        let test = fixture();
        test.load("0 32 flakey a 8 1000000 0 1 drop_writes");
        test.write(1, 1, 200).unwrap();
        let mut model = initial("a", 64);
        model[9 * SECTOR..10 * SECTOR].fill(200);
        assert_eq!(test.contents("a"), model);
        assert_eq!(test.read(0, 32).unwrap(), model[8 * SECTOR..40 * SECTOR]);
    }

    #[test]
    fn a_read_that_began_while_up_ends_well() {
        let test = fixture();
        test.fixture.load("slow", "0 64 delay a 0 2000");
        test.load("0 32 flakey @slow 0 1 1000");
        let read = |env: &Env| Io::read(range(0, 1), env.segs(SectorCount(1)));
        test.start(1, "read", read);
        test.run(Duration::from_secs(3));
        assert_eq!(*test.ends.all(), [("read", Ok(()))]);
        assert_eq!(test.read(0, 1), Err(INJECTED));
    }

    #[test]
    fn without_features_everything_fails_while_down() {
        for features in ["", "0"] {
            let test = down(features);
            assert_eq!(test.read(0, 1), Err(INJECTED));
            assert_eq!(test.write(0, 1, 1), Err(INJECTED));
            for op in [Op::Flush, Op::Discard, Op::WriteZeroes] {
                let count = if op == Op::Flush { 0 } else { 1 };
                assert_eq!(test.on(op, 0, count), Err(INJECTED));
            }
            assert_eq!(test.contents("a"), initial("a", 64));
        }
    }

    #[test]
    fn dropped_writes_are_told_as_done() {
        let test = down("1 drop_writes");
        test.write(0, 1, 1).unwrap();
        test.on(Op::WriteZeroes, 0, 32).unwrap();
        test.on(Op::Flush, 0, 0).unwrap();
        assert_eq!(test.contents("a"), initial("a", 64));
        assert_eq!(test.read(0, 1).unwrap(), initial("a", 9)[8 * SECTOR..]);
    }

    #[test]
    fn failing_writes_leave_reads_alone_and_the_other_way_round() {
        let test = down("1 error_writes");
        assert_eq!(test.write(0, 1, 1), Err(INJECTED));
        assert_eq!(test.on(Op::Flush, 0, 0), Err(INJECTED));
        assert!(test.read(0, 1).is_ok());
        let test = down("1 error_reads");
        test.write(0, 1, 1).unwrap();
        assert_eq!(test.read(0, 1), Err(INJECTED));
        assert_eq!(test.contents("a")[8 * SECTOR..9 * SECTOR], [1; SECTOR]);
        let test = down("2 error_reads drop_writes");
        test.write(0, 1, 1).unwrap();
        assert_eq!(test.read(0, 1), Err(INJECTED));
        assert_eq!(test.contents("a"), initial("a", 64));
    }

    #[test]
    fn a_read_comes_back_with_the_byte_replaced() {
        let test = down("5 corrupt_bio_byte 514 r 0 0");
        let mut expected = initial("a", 12)[8 * SECTOR..].to_vec();
        expected[513] = 0;
        assert_eq!(test.read(0, 4).unwrap(), expected);
        assert_eq!(test.read(0, 1).unwrap(), initial("a", 9)[8 * SECTOR..], "too short a read");
        assert_eq!(test.contents("a"), initial("a", 64), "the disk is as it was");
        test.write(0, 1, 1).unwrap();
        assert_eq!(test.contents("a")[8 * SECTOR..9 * SECTOR], [1; SECTOR]);
    }

    #[test]
    fn a_write_reaches_the_disk_with_the_byte_replaced_and_the_caller_keeps_its_data() {
        let test = down("5 corrupt_bio_byte 1 w 65 0");
        let segs = std::cell::RefCell::new(None);
        test.io(|env| {
            let io = write_io(env, 3, 2, 1);
            *segs.borrow_mut() = Some(io.segs.clone());
            io
        })
        .unwrap();
        assert_eq!(segs.take().unwrap().to_vec(), [1; 2 * SECTOR]);
        let mut expected = [1; 2 * SECTOR];
        expected[0] = 65;
        assert_eq!(test.contents("a")[11 * SECTOR..13 * SECTOR], expected);
        assert_eq!(test.read(3, 2).unwrap(), expected);
    }

    #[test]
    fn only_requests_with_all_flags_are_corrupted() {
        let meta_and_fua = (1 << 12) + (1 << 17);
        let test = down(&format!("5 corrupt_bio_byte 1 w 65 {meta_and_fua}"));
        for (flags, corrupted) in [
            (Flags::empty(), false),
            (Flags::META, false),
            (Flags::FUA, false),
            (Flags::META | Flags::FUA, true),
        ] {
            test.io(|env| write_io(env, 0, 1, 1).with(flags)).unwrap();
            let first = test.contents("a")[8 * SECTOR];
            assert_eq!(first, if corrupted { 65 } else { 1 }, "{flags:?}");
        }
    }

    #[test]
    fn random_corruption_happens_as_often_as_told() {
        let test = down("4 random_read_corrupt 500000000 random_write_corrupt 1000000000");
        let clean = test.contents("a")[8 * SECTOR..9 * SECTOR].to_vec();
        let hits = (0..200).filter(|_| test.read(0, 1).unwrap() != clean).count();
        assert!((70..130).contains(&hits), "{hits} of 200");
        let mut changed = 0;
        for _ in 0..20 {
            test.write(0, 1, 1).unwrap();
            let sector = &test.contents("a")[8 * SECTOR..9 * SECTOR];
            let wrong = sector.iter().filter(|byte| **byte != 1).count();
            assert!(wrong <= 1);
            changed += wrong;
        }
        assert!(changed >= 15, "{changed} of 20; a random value may be the right one");
    }

    #[test]
    fn the_table_prints_the_kernels_way() {
        for (given, printed) in [
            ("1 2", "1 2 0"),
            ("1 2 0", "1 2 0"),
            ("1 2 1 DROP_writes", "1 2 1 drop_writes"),
            ("1 2 1 error_writes", "1 2 1 error_writes"),
            ("1 2 1 error_reads", "1 2 1 error_reads"),
            ("1 2 5 corrupt_bio_byte 224 W 0 32", "1 2 5 corrupt_bio_byte 224 w 0 32"),
            (
                "1 2 6 corrupt_bio_byte 224 r 0 32 drop_writes",
                "1 2 6 drop_writes corrupt_bio_byte 224 r 0 32",
            ),
            (
                "1 2 11 random_write_corrupt 2 random_read_corrupt 1 error_reads error_writes \
                 corrupt_bio_byte 1 r 2 3",
                "1 2 11 error_reads error_writes corrupt_bio_byte 1 r 2 3 random_read_corrupt 1 \
                 random_write_corrupt 2",
            ),
        ] {
            let test = fixture();
            test.load(&format!("0 32 flakey a 8 {given}"));
            let table = test.target().table();
            assert_eq!(table, format!("a 8 {printed}"));
            test.load(&format!("0 32 flakey {table}"));
            assert_eq!(test.target().table(), table);
            assert_eq!(test.target().status(), "");
        }
    }

    #[test]
    fn what_is_down_counts_as_data() {
        let test = fixture();
        test.fixture.load("hole", "0 64 zero");
        test.load("0 32 flakey @hole 0 1 1000");
        assert_eq!(test.extents(range(0, 32)).unwrap()[0].kind, ExtentKind::Hole);
        test.run(Duration::from_secs(2));
        assert_eq!(test.extents(range(0, 32)).unwrap()[0].kind, ExtentKind::Data);
    }

    #[test]
    fn each_wrong_argument_is_named() {
        let test = fixture();
        for (args, expected) in [
            ("x 0 1 2", "x: device: found none"),
            ("a x 1 2", "flakey: offset: found 'x'"),
            ("a 60 1 2", "a: flakey offset: found 60 for 32 sectors"),
            ("a 0", "flakey: up_interval: found nothing"),
            ("a 0 x 2", "flakey: up_interval: found 'x'"),
            ("a 0 1", "flakey: down_interval: found nothing"),
            ("a 0 1 x", "flakey: down_interval: found 'x'"),
            ("a 0 0 0", "flakey: down_interval: found 0 with the up_interval"),
            ("a 0 4294967295 1", "flakey: down_interval: found 4294967296 with"),
            ("a 0 1 2 12", "flakey: #features: found '12', expected a number from 0 to 11"),
            ("a 0 1 2 2 drop_writes", "flakey: #features: found 2 with 1 words after it"),
            ("a 0 1 2 1 drop_writes x", "flakey: trailing words: found 'x'"),
            ("a 0 1 2 1 nonsense", "flakey: option: found 'nonsense', expected one of error_reads"),
            ("a 0 1 2 2 drop_writes drop_writes", "flakey: features: found 'drop_writes'"),
            ("a 0 1 2 2 drop_writes error_writes", "flakey: features: found 'error_writes'"),
            ("a 0 1 2 2 error_reads error_reads", "flakey: features: found 'error_reads'"),
            ("a 0 1 2 4 corrupt_bio_byte 1 r 0", "flakey: corrupt_bio_byte: found 3 words"),
            ("a 0 1 2 5 corrupt_bio_byte 0 r 0 0", "flakey: corrupt_bio_byte nth_byte: found '0'"),
            ("a 0 1 2 5 corrupt_bio_byte 1 x 0 0", "flakey: corrupt_bio_byte direction: found 'x'"),
            ("a 0 1 2 5 corrupt_bio_byte 1 r 256 0", "flakey: corrupt_bio_byte value: found '256'"),
            ("a 0 1 2 5 corrupt_bio_byte 1 r 0 z", "flakey: corrupt_bio_byte flags: found 'z'"),
            (
                "a 0 1 2 6 corrupt_bio_byte 1 w 0 0 drop_writes",
                "flakey: features: found 'drop_writes', expected no 'corrupt_bio_byte' for writes",
            ),
            (
                "a 0 1 2 6 error_writes corrupt_bio_byte 1 w 0 0",
                "flakey: features: found 'error_writes', expected no 'corrupt_bio_byte'",
            ),
            ("a 0 1 2 2 random_read_corrupt 1000000001", "flakey: random_read_corrupt: found"),
            ("a 0 1 2 2 random_write_corrupt x", "flakey: random_write_corrupt: found 'x'"),
        ] {
            let refusal = test.refusal(&format!("0 32 flakey {args}"));
            assert!(refusal.starts_with(expected), "{refusal}");
        }
    }
}

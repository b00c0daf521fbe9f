//! `flakey`: like `linear`, but unreliable for some seconds out of every so many.
//!
//! From the moment the table line was loaded, the device is up for `up_interval` seconds, then
//! down for `down_interval` seconds, and so on. While it is up, requests go on unchanged. While
//! it is down, each request meets a [`Fate`] that the features decide; without any feature,
//! everything fails.
//!
//! Promises: a request's fate is decided when it is mapped, so a read that began while the
//! device was up ends well. The memory of a write is never touched: what is to be corrupted is
//! copied first. Injected errors are marked as such. Needs no task but the ones that carry
//! corrupted copies, which end with their request.

use std::fmt::Write;
use std::future::ready;
use std::sync::Arc;

use cairn_block::{
    ConfigError, Ctor, Disk, EndIo, Env, ErrorKind, Extent, Flags, Io, IoError, IoResult,
    LocalFuture, Op, Request, SectorRange, Segs, Target, TargetType, Time, Verdict,
};

use crate::area::Area;
use crate::args::{Args, OptionSpec, Spec};

const OPTIONS: &[OptionSpec] = &[
    OptionSpec::new("drop_writes", &[]),
    OptionSpec::new("error_writes", &[]),
    OptionSpec::new("error_reads", &[]),
    OptionSpec::new("corrupt_bio_byte", &["nth_byte", "direction", "value", "flags"]),
    OptionSpec::new("random_read_corrupt", &["probability"]),
    OptionSpec::new("random_write_corrupt", &["probability"]),
];

/// The words of `flakey`.
pub const SPEC: Spec = Spec { options: OPTIONS, status_fields: &[], messages: &[] };

/// The most words a group of features can have: all but one of the two that exclude each other.
const MOST_WORDS: usize = 11;

/// What a probability is a fraction of.
const PROBABILITY_BASE: u64 = 1_000_000_000;

/// A read that `end_io` must corrupt carries this word.
const READ_WHILE_DOWN: u64 = 1;

/// The kind of target.
pub struct FlakeyType;

impl TargetType for FlakeyType {
    fn name(&self) -> &'static str {
        "flakey"
    }

    fn version(&self) -> [u32; 3] {
        [1, 5, 0]
    }

    fn construct<'a>(
        &'a self,
        env: &'a Env,
        ctor: Ctor<'a>,
    ) -> LocalFuture<'a, Result<Arc<dyn Target>, ConfigError>> {
        Box::pin(ready(Flakey::parse(env, &ctor).map(|target| Arc::new(target) as _)))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Read,
    Write,
}

impl Direction {
    const WORDS: [&str; 2] = ["r", "w"];
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
    fn parse(mut group: Args<'_>) -> Result<Features, ConfigError> {
        let mut features = Features::default();
        while let Some(option) = group.option(OPTIONS)? {
            features.refuse_conflict(&group, option)?;
            match option {
                "drop_writes" => features.drop_writes = true,
                "error_writes" => features.error_writes = true,
                "error_reads" => features.error_reads = true,
                "corrupt_bio_byte" => features.corrupt = Some(CorruptByte::parse(&mut group)?),
                "random_read_corrupt" => features.random_read = probability(&mut group, option)?,
                "random_write_corrupt" => features.random_write = probability(&mut group, option)?,
                _ => unreachable!("every option has its arm"),
            }
        }
        if features.corrupt.is_some_and(|corrupt| corrupt.direction == Direction::Write)
            && (features.drop_writes || features.error_writes)
        {
            let found = if features.drop_writes { "drop_writes" } else { "error_writes" };
            let expected = "no 'corrupt_bio_byte' for writes beside it";
            return Err(group.refuse("features", format!("'{found}'"), expected));
        }
        Ok(features)
    }

    /// `drop_writes` and `error_writes` stand once, and not together.
    fn refuse_conflict(&self, group: &Args<'_>, option: &str) -> Result<(), ConfigError> {
        let of_writes = ["drop_writes", "error_writes"].contains(&option);
        let twice = option == "error_reads" && self.error_reads;
        if twice || (of_writes && (self.drop_writes || self.error_writes)) {
            let expected = match of_writes {
                true => "only one of drop_writes and error_writes, once",
                false => "it once",
            };
            return Err(group.refuse("features", format!("'{option}'"), expected));
        }
        Ok(())
    }

    /// The words of the table line, with their count before them.
    fn words(&self) -> String {
        let mut words = Vec::new();
        let flags = [
            (self.error_reads, "error_reads"),
            (self.drop_writes, "drop_writes"),
            (self.error_writes, "error_writes"),
        ];
        words.extend(flags.iter().filter(|(set, _)| *set).map(|(_, word)| (*word).to_owned()));
        if let Some(CorruptByte { nth, direction, value, flags }) = self.corrupt {
            let direction = Direction::WORDS[direction as usize];
            let values = [nth.to_string(), direction.to_owned(), value.to_string()];
            words.push("corrupt_bio_byte".to_owned());
            words.extend(values);
            words.push(flags.to_string());
        }
        let randoms = [
            ("random_read_corrupt", self.random_read),
            ("random_write_corrupt", self.random_write),
        ];
        for (word, probability) in randoms.iter().filter(|(_, probability)| *probability > 0) {
            words.extend([(*word).to_owned(), probability.to_string()]);
        }
        words.insert(0, words.len().to_string());
        words.join(" ")
    }

    /// What becomes of a request while the device is down.
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

fn probability(group: &mut Args<'_>, option: &str) -> Result<u64, ConfigError> {
    group.number(option, 0..=PROBABILITY_BASE)
}

impl CorruptByte {
    fn parse(group: &mut Args<'_>) -> Result<CorruptByte, ConfigError> {
        let nth = group.number("corrupt_bio_byte nth_byte", 1..=u64::from(u32::MAX))?;
        let direction = group.choice("corrupt_bio_byte direction", &Direction::WORDS)?;
        let direction = [Direction::Read, Direction::Write][direction];
        let value = group.number("corrupt_bio_byte value", 0..=u64::from(u8::MAX))? as u8;
        let flags = group.number("corrupt_bio_byte flags", 0..=u64::from(u32::MAX))?;
        Ok(CorruptByte { nth, direction, value, flags })
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

/// What becomes of a request.
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
    area: Area,
    up_seconds: u64,
    down_seconds: u64,
    features: Features,
    began: Time,
}

impl Flakey {
    /// `<device> <offset> <up_interval> <down_interval> [<#features> <feature>...]`
    fn parse(env: &Env, ctor: &Ctor<'_>) -> Result<Flakey, ConfigError> {
        let mut args = Args::new("flakey", ctor);
        let area = args.area("device", "offset", ctor.len)?;
        let most = u64::from(u32::MAX);
        let up_seconds = args.number("up_interval", 0..=most)?;
        let down_seconds = args.number("down_interval", 0..=most)?;
        if !(1..=most).contains(&(up_seconds + down_seconds)) {
            let found = format!("{} with the up_interval", up_seconds + down_seconds);
            return Err(args.refuse("down_interval", found, "a sum from 1 to 4294967295"));
        }
        let features = Features::parse(args.group("#features", MOST_WORDS)?)?;
        args.finish()?;
        Ok(Flakey { area, up_seconds, down_seconds, features, began: env.now() })
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
            Fate::Fail => Verdict::Failed(IoError::injected(ErrorKind::Io)),
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

    fn table(&self) -> String {
        let mut table = self.area.to_string();
        let (up, down) = (self.up_seconds, self.down_seconds);
        write!(table, " {up} {down} {}", self.features.words())
            .expect("writing to a string does not fail");
        table
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

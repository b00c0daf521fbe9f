//! Part of `bench thin`: what looking for zeros costs and gains.
//!
//! First the tests alone, over cold memory beside plain reading, and over random bytes that the
//! processor has at hand. Then volumes that hold nothing yet, beside the raw memory disk and plain
//! reading of the same buffers: `off` looks for nothing; `ours` is the pool's own `detect_zeroes
//! unmap`; with the others a client looks, and sends zeros as such to a pool that looks for
//! nothing.

use std::hint::black_box;
use std::sync::{Arc, Barrier};

use cairn_block::{Op, Segs};
use cairn_outcome::failure::Outcome;

use super::clock::{Moment, Took};
use super::fixture::Fixture;
use super::load::{Data, Job};
use super::row::{Report, Row, Samples};
use super::sample::{Subject, interleave};
use super::settings::Settings;
use super::snapshotfixture::{Figures, Phase, Side};
use super::thinfixture::{How, MIB, NAME, Step, ThinFixture, disks};

const KIB: usize = 1 << 10;
/// The pool looks for zeros.
pub const DETECT: &str = "2 detect_zeroes unmap";
const NOTHING: &str = "0";

/// A way to tell whether a piece of memory is zeros.
struct Test {
    name: &'static str,
    is_zero: fn(&Segs) -> bool,
}

const OURS: Test = Test { name: "ours", is_zero: |segs| segs.is_zero(0, segs.bytes()) };

const OTHERS: [Test; 4] = [
    Test { name: "byte_loop", is_zero: |segs| all(segs, |bytes| bytes.iter().all(|&b| b == 0)) },
    Test { name: "u64", is_zero: |segs| all(segs, by_words::<8>) },
    Test { name: "u128", is_zero: |segs| all(segs, by_words::<16>) },
    Test { name: "memcmp", is_zero: |segs| all(segs, by_comparing) },
];

/// True if the test says so of each part.
fn all(segs: &Segs, is_zero: impl Fn(&[u8]) -> bool) -> bool {
    let mut zero = true;
    segs.for_each(0, segs.bytes(), |bytes| zero = zero && is_zero(bytes));
    zero
}

/// Looks at each word; what follows the last is not looked at.
fn by_words<const BYTES: usize>(bytes: &[u8]) -> bool {
    let (words, _) = bytes.as_chunks::<BYTES>();
    words.iter().all(|word| *word == [0; BYTES])
}

/// Compares the bytes with themselves, one further.
fn by_comparing(bytes: &[u8]) -> bool {
    bytes.first() == Some(&0) && bytes[1..] == bytes[..bytes.len() - 1]
}

/// Reads all bytes and does as little as can be done with them.
fn read_plainly(segs: &Segs) -> bool {
    let mut sum = 0_u64;
    segs.for_each(0, segs.bytes(), |bytes| {
        let (words, _) = bytes.as_chunks::<8>();
        let words = words.iter().map(|word| u64::from_ne_bytes(*word));
        sum = words.fold(sum, u64::wrapping_add);
    });
    sum == 0
}

/// Adds the rows.
///
/// # Errors
/// A disk or a pool cannot be made or used.
pub fn run(settings: &Settings, report: &mut Report) -> Outcome<()> {
    cold(settings, report)?;
    rejecting(settings, report)?;
    volumes(settings, report)
}

/// Pieces of cold zeros.
fn cold(settings: &Settings, report: &mut Report) -> Outcome<()> {
    let span = settings.pick(256 * MIB, 4 * MIB);
    let fixture = Fixture::make()?;
    for bytes in [4 * KIB, 64 * KIB, 512 * KIB, 1024 * KIB] {
        let tests = [Test { name: "read", is_zero: read_plainly }, OURS].into_iter().chain(OTHERS);
        let tests: Vec<Test> = tests.collect();
        let functions = tests.iter().map(|test| test.is_zero).collect();
        let memory = Memory { span, bytes, data: Data::Zeros, rounds: 1 };
        let taken = over(&fixture, memory, functions, settings.runs);
        let speed = |took: &Took| span as f64 / 1e9 / took.processor.as_secs_f64().max(1e-9);
        let speeds = |took: &Vec<Took>| Samples(took.iter().map(speed).collect());
        let read = speeds(&taken[0]);
        for (test, speeds) in tests.iter().zip(taken.iter().map(speeds)).skip(1) {
            let row = Row::new(NAME, speeds, "GB/s").with("test", test.name);
            let row = row.with("data", "zeros").with("memory", "cold").with("bytes", bytes);
            report.push(row.with("beside", "plain read").against(&read));
        }
    }
    Ok(())
}

/// Random bytes that lie in the processor's cache: how soon a test is done with them.
fn rejecting(settings: &Settings, report: &mut Report) -> Outcome<()> {
    let fixture = Fixture::make()?;
    let rounds = settings.pick(1000, 10);
    let memory = Memory { span: 128 << 10, bytes: 4 * KIB, data: Data::Random, rounds };
    let nothing = Test { name: "nothing", is_zero: |segs| all(segs, |_| false) };
    let tests: Vec<Test> = [nothing, OURS].into_iter().chain(OTHERS).collect();
    let functions = tests.iter().map(|test| test.is_zero).collect();
    let taken = over(&fixture, memory, functions, settings.runs);
    let count = (memory.span as usize / memory.bytes) * rounds;
    let each = |took: &Vec<Took>| Samples(took.iter().map(|took| took.ns_each(count)).collect());
    let without = each(&taken[0]);
    for (test, took) in tests.iter().zip(&taken).skip(1) {
        let added = each(took).zip(&without, |with, without| with - without);
        let row = Row::new(NAME, added, "ns/request").with("test", test.name);
        let row = row.with("data", "random").with("memory", "hot");
        report.push(row.with("bytes", memory.bytes).with("what", "added"));
    }
    Ok(())
}

/// Memory to look at, piece by piece.
#[derive(Clone, Copy)]
struct Memory {
    span: u64,
    bytes: usize,
    data: Data,
    /// How often all of it.
    rounds: usize,
}

/// How long each test took over all of some memory, round by round, in turns.
fn over(
    fixture: &Fixture,
    memory: Memory,
    tests: Vec<fn(&Segs) -> bool>,
    runs: usize,
) -> Vec<Vec<Took>> {
    fixture.on(move |env| async move {
        let Memory { span, bytes, data, rounds } = memory;
        let buf = env.buf(span as usize);
        // Pages that were never written are all one page.
        buf.write(0, span as usize, |all| fastrand::Rng::with_seed(1).fill(all));
        if data == Data::Zeros {
            buf.write(0, span as usize, |all| all.fill(0));
        }
        let mut taken = vec![Vec::new(); tests.len()];
        for _ in 0..runs {
            for (test, taken) in tests.iter().zip(&mut taken) {
                let began = Moment::now();
                for _ in 0..rounds {
                    let pieces = (0..span as usize).step_by(bytes);
                    let pieces = pieces.map(|at| Segs::of(&buf, at, bytes));
                    black_box(pieces.filter(test).count());
                }
                taken.push(began.elapsed());
            }
        }
        taken
    })
}

/// A way to look for zeros in what a volume is written with.
struct Way {
    name: &'static str,
    options: &'static str,
    elide: Option<fn(&Segs) -> bool>,
}

fn ways() -> Vec<Way> {
    let other = |test: Test| Way { name: test.name, options: NOTHING, elide: Some(test.is_zero) };
    let mut ways = vec![
        Way { name: "off", options: NOTHING, elide: None },
        Way { name: OURS.name, options: DETECT, elide: None },
    ];
    ways.extend(OTHERS.map(other));
    ways
}

/// What a volume is written with under so many workers.
#[derive(Clone, Copy)]
struct Load {
    data: Data,
    bytes: usize,
    workers: u16,
}

impl Load {
    fn phase(&self, on: Side) -> Phase {
        let what = if on == Side::Raw { "raw" } else { "first_write" };
        Phase { bytes: self.bytes, stride: self.bytes, ..Phase::small(what, on, Op::Write) }
    }

    fn row(&self, unit: &'static str, value: Samples) -> Row {
        let data = match self.data {
            Data::Random => "random",
            Data::Zeros => "zeros",
            Data::LastByte => "last_byte",
        };
        let row = Row::new(NAME, value, unit).with("data", data).with("bytes", self.bytes);
        row.with("workers", self.workers)
    }
}

/// Volumes that hold nothing, written once.
fn volumes(settings: &Settings, report: &mut Report) -> Outcome<()> {
    let span = settings.pick(128 * MIB, 4 * MIB);
    let disks = disks(span)?;
    for &workers in settings.pick(&[1, 2, 4][..], &[1, 2]) {
        let fixture = ThinFixture::make(workers, &disks)?;
        for data in [Data::Zeros, Data::Random, Data::LastByte] {
            for &bytes in settings.pick(&[4 * KIB, 64 * KIB, 1024 * KIB][..], &[4 * KIB]) {
                volume(settings, report, (&fixture, span), Load { data, bytes, workers })?;
            }
        }
    }
    Ok(())
}

fn volume(
    settings: &Settings,
    report: &mut Report,
    (fixture, span): (&ThinFixture, u64),
    load: Load,
) -> Outcome<()> {
    let how = How { data: load.data, ..How::RANDOM };
    let measure = |options: &'static str, step: Step| -> Subject<'_, Vec<Figures>> {
        Box::new(move || fixture.measure(options, span, &[step, step]))
    };
    let jobs = load.phase(Side::Raw).jobs(span, load.workers);
    let jobs: Vec<Job> = jobs.into_iter().map(|job| Job { data: load.data, ..job }).collect();
    let mut subjects: Vec<Subject<'_, Vec<Figures>>> = vec![
        Box::new(|| Ok(vec![reading(fixture, &jobs)])),
        measure(NOTHING, Step::Run(load.phase(Side::Raw), how)),
    ];
    let ways = ways();
    for Way { options, elide, .. } in &ways {
        let how = How { elide: *elide, ..how };
        subjects.push(measure(options, Step::Run(load.phase(Side::Origin), how)));
    }
    let taken = interleave(settings.runs, subjects)?;
    let samples = |subject: usize, phase: usize, of: fn(&Figures) -> f64| {
        Samples(taken[subject].iter().map(|figures| of(&figures[phase])).collect())
    };
    let speeds = |subject: usize, phase: usize| {
        let per_s = match load.workers {
            1 => samples(subject, phase, |figures| 1e6 / figures.us),
            _ => samples(subject, phase, |figures| figures.per_s),
        };
        Samples(per_s.0.iter().map(|per_s| per_s * load.bytes as f64 / MIB as f64).collect())
    };
    let (read, raw) = (speeds(0, 0), speeds(1, 1));
    report.push(load.row("MiB/s", raw.clone()).with("what", "raw").against(&read));
    for (subject, way) in (2..).zip(&ways) {
        let row = load.row("MiB/s", speeds(subject, 0)).with("what", "first_write");
        report.push(row.with("test", way.name).with("beside", "raw").against(&raw));
    }
    let (off, ours) = (2, 3);
    for (phase, what) in ["first_write", "write_again"].into_iter().enumerate() {
        let us = |subject| samples(subject, phase, |figures| figures.us);
        let row = load.row("us/request", us(ours)).with("what", what).with("test", OURS.name);
        report.push(row.with("beside", "off").against(&us(off)));
        let added = us(ours).zip(&us(off), |ours, off| (ours - off) * 1000.0);
        let row = load.row("ns/request", added).with("what", what).with("test", OURS.name);
        report.push(row.with("beside", "off, added"));
    }
    Ok(())
}

/// Plain reading of the buffers of jobs, as often as they are used.
fn reading(fixture: &ThinFixture, jobs: &[Job]) -> Figures {
    let (jobs, start) = (Arc::new(jobs.to_vec()), Arc::new(Barrier::new(jobs.len())));
    let requests = jobs.iter().map(Job::requests).sum();
    let took = fixture.fixture().on_each(move |index, env| {
        let (jobs, start) = (jobs.clone(), start.clone());
        async move {
            let job = &jobs[usize::from(index)];
            let buffers = job.buffers(&env);
            start.wait();
            let began = Moment::now();
            let used = buffers.iter().cycle().take(job.requests());
            black_box(used.filter(|segs| read_plainly(segs)).count());
            began.elapsed()
        }
    });
    Figures::of(requests, &took)
}

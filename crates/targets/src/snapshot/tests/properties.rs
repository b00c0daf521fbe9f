//! An origin with snapshots against the reference model: whole contents, copied when a snapshot is
//! made.

use cairn_block::{Flags, Io, Op, SuspendMode};
use proptest::prelude::{ProptestConfig, Strategy, any, prop_oneof};
use proptest::{collection, proptest};

use super::super::model::Model;
use super::fixture::{SnapshotFixture, initial_byte, range, write_io};

const SECTORS: u64 = 200;
const COWS: [&str; 3] = ["cow0", "cow1", "cow2"];
const NAMES: [&str; 3] = ["s0", "s1", "s2"];

/// What somebody does.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Writes the origin, or (1 to 3) a snapshot.
    Write {
        volume: usize,
        at: u64,
        len: u64,
        byte: u8,
        fua: bool,
    },
    Zero {
        volume: usize,
        at: u64,
        len: u64,
    },
    Create {
        which: usize,
        kind: usize,
        chunk_shift: u32,
    },
    Remove(usize),
    Reload(usize),
    Suspend(usize, bool),
    /// Merges a snapshot to the end, or not.
    Merge {
        which: usize,
        writes: [u64; 3],
    },
    Crash,
}

fn step() -> impl Strategy<Value = Step> {
    let place = (0..SECTORS, 1..40u64);
    prop_oneof![
        8 => (0..4usize, place.clone(), 1..255u8, any::<bool>()).prop_map(
            |(volume, (at, len), byte, fua)| Step::Write { volume, at, len, byte, fua }),
        1 => (0..4usize, place).prop_map(|(volume, (at, len))| Step::Zero { volume, at, len }),
        3 => (0..3usize, 0..3usize, 0..6u32).prop_map(
            |(which, kind, chunk_shift)| Step::Create { which, kind, chunk_shift }),
        1 => (0..3usize).prop_map(Step::Remove),
        1 => (0..3usize).prop_map(Step::Reload),
        1 => (0..4usize, any::<bool>()).prop_map(|(volume, flush)| Step::Suspend(volume, flush)),
        1 => (0..3usize, [0..SECTORS, 0..SECTORS, 0..SECTORS]).prop_map(
            |(which, writes)| Step::Merge { which, writes }),
        1 => (0..1usize).prop_map(|_| Step::Crash),
    ]
}

struct Comparison {
    test: SnapshotFixture,
    model: Model,
    /// The table lines of the snapshots that there are.
    lines: [Option<String>; 3],
}

impl Comparison {
    fn new() -> Comparison {
        let test = SnapshotFixture::new(SECTORS, &[4000; 3]);
        test.load("o", &origin_line());
        let model = Model::new((0..SECTORS).map(initial_byte).collect());
        Comparison { test, model, lines: [None, None, None] }
    }

    fn volume(&self, volume: usize) -> Option<&'static str> {
        match volume {
            0 => Some("o"),
            _ => self.lines[volume - 1].as_ref().map(|_| NAMES[volume - 1]),
        }
    }

    fn change(&mut self, volume: usize, at: u64, len: u64, byte: u8, io: Io) {
        let Some(name) = self.volume(volume) else { return };
        self.test.io(name, |_| io).unwrap();
        self.model.write(volume.checked_sub(1), at, len, byte);
    }

    fn act(&mut self, step: Step) {
        match step {
            Step::Write { volume, at, len, byte, fua } => {
                let Some(name) = self.volume(volume) else { return };
                let len = len.min(SECTORS - at);
                let flags = if fua { Flags::FUA } else { Flags::empty() };
                let io = |env: &cairn_block::Env| write_io(env, at, len, byte).with(flags);
                self.test.io(name, io).unwrap();
                self.model.write(volume.checked_sub(1), at, len, byte);
            }
            Step::Zero { volume, at, len } => {
                let len = len.min(SECTORS - at);
                self.change(volume, at, len, 0, Io::on(Op::WriteZeroes, range(at, len)));
            }
            Step::Create { which, kind, chunk_shift } if self.lines[which].is_none() => {
                self.create(which, ["P", "PO", "N"][kind], 1 << chunk_shift);
            }
            Step::Remove(which) if self.lines[which].is_some() => self.remove(which),
            Step::Reload(which) => {
                if let Some(line) = self.lines[which].clone() {
                    self.test.load(NAMES[which], &line);
                }
            }
            Step::Suspend(volume, flush) => {
                let Some(name) = self.volume(volume) else { return };
                let mode = if flush { SuspendMode::Flush } else { SuspendMode::NoFlush };
                self.test.suspend(name, mode);
                self.test.resume(name).unwrap();
            }
            Step::Merge { which, writes } => self.merge(which, writes),
            Step::Crash => self.crash(),
            Step::Create { .. } | Step::Remove(_) => (),
        }
    }

    fn create(&mut self, which: usize, kind: &str, chunk: u64) {
        let line = format!("0 {SECTORS} snapshot origin {} {kind} {chunk}", COWS[which]);
        self.test.suspend("o", SuspendMode::Flush);
        let blank = vec![0; 8192];
        self.test.drive(COWS[which]).resize(cairn_block::SectorCount(0));
        self.test.drive(COWS[which]).resize(cairn_block::SectorCount(4000));
        assert_eq!(self.test.drive(COWS[which]).visible().to_vec()[..8192], blank);
        self.test.load(NAMES[which], &line);
        self.test.resume("o").unwrap();
        self.model.create(which);
        self.lines[which] = Some(line);
    }

    fn remove(&mut self, which: usize) {
        self.test.remove(NAMES[which]);
        self.model.remove(which);
        self.lines[which] = None;
    }

    fn merge(&mut self, which: usize, writes: [u64; 3]) {
        let Some(line) = self.lines[which].clone().filter(|line| !line.contains(" N ")) else {
            return;
        };
        self.test.suspend(NAMES[which], SuspendMode::Flush);
        self.test.suspend("o", SuspendMode::Flush);
        self.test.load("o", &line.replace("snapshot", "snapshot-merge"));
        self.model.merge(which);
        for (at, byte) in writes.into_iter().zip(1..) {
            let len = 7.min(SECTORS - at);
            self.test.write("o", at, len, byte).unwrap();
            self.model.write(None, at, len, byte);
        }
        self.test.sim.run_until(|| {
            let status = self.test.status("o");
            let (head, metadata) = status.split_once(' ').expect("it is well");
            head.split_once('/').expect("two figures").0 == metadata
        });
        self.test.load("o", &origin_line());
        self.remove(which);
    }

    /// What is durable now is everything, after a flush of each volume; memory is lost.
    fn crash(&mut self) {
        for volume in 0..4 {
            if let Some(name) = self.volume(volume) {
                self.test.flush(name).unwrap();
            }
        }
        self.test = self.test.reopen_durable();
        for (which, name) in NAMES.into_iter().enumerate() {
            let Some(line) = self.lines[which].clone() else { continue };
            if line.contains(" N ") {
                self.lines[which] = None;
                self.model.remove(which);
            } else {
                self.test.load(name, &line);
            }
        }
        self.test.load("o", &origin_line());
    }

    fn compare(&self) {
        for volume in 0..4usize {
            if let Some(name) = self.volume(volume) {
                let bytes = self.test.bytes(name, 0, SECTORS);
                assert_eq!(bytes, self.model.content(volume.checked_sub(1)), "{name}");
            }
        }
    }
}

fn origin_line() -> String {
    format!("0 {SECTORS} snapshot-origin origin")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn volumes_hold_what_the_reference_model_holds(steps in collection::vec(step(), 1..60)) {
        let mut comparison = Comparison::new();
        for step in steps {
            comparison.act(step);
            comparison.compare();
        }
    }
}

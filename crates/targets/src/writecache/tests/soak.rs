//! The soak test: very many operations against the history checker, on caches of many shapes, with
//! messages, suspends and table changes under load. The state's invariants, those of the index
//! first, are checked at seeded moments. After each round the whole volume is read and checked, and
//! at the end of a life the origin alone.
//!
//! `CAIRN_SOAK_OPS=100000000 cargo test --release -p cairn-targets --lib soak -- --nocapture` is
//! the long run; it says how far it is. A life follows from the seed and its number alone:
//! `CAIRN_SEED=s CAIRN_SOAK_FROM=n` goes on with life `n`, or repeats it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cairn_block::{Disk, Op, Sector, SectorCount, SuspendMode};
use cairn_sim::{DriveModel, History, Image, Running, Workload};

use super::fixture::{CacheFixture, cache_sectors, range, table};

const SEED: u64 = 0x50a4;

/// Operations of a soak if nobody says how many.
const OPS: u64 = 100_000;

/// After each round the volume is read, and the judge starts anew from what it holds.
const ROUND_OPS: u64 = 1000;

/// Rounds on one cache.
const LIFE_ROUNDS: u64 = 20;

/// How often it is told how far the soak is.
const TELL_EVERY: Duration = Duration::from_secs(10);

const OPTIONS: &[&str] = &[
    "pause_writeback 0",
    "high_watermark 90 low_watermark 60 pause_writeback 1",
    "pause_writeback 5 autocommit_time 1",
    "high_watermark 100 low_watermark 0 autocommit_blocks 3 pause_writeback 0",
    "high_watermark 100 low_watermark 100",
    "max_age 4 writeback_jobs 2 pause_writeback 1",
    "cleaner pause_writeback 0",
    "autocommit_blocks 0 high_watermark 0 low_watermark 0 pause_writeback 0",
];

/// One cache from its formatting to its end.
struct Life {
    rng: fastrand::Rng,
    test: CacheFixture,
    disk: Arc<dyn Disk>,
    history: History,
    sectors: u64,
    block: u64,
}

impl Life {
    fn begin(seed: u64, number: u64) -> Life {
        let seed = seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut rng = fastrand::Rng::with_seed(seed);
        let block = [512, 1024, 4096][rng.usize(..3)];
        let sectors = [512, 1024, 4096][rng.usize(..3)];
        let blocks = sectors * 512 / block;
        let slots = rng.u64(1 + blocks / 16..=blocks + blocks / 4);
        let zeros = |sectors| Image::new(SectorCount(sectors));
        let (origin, cache) = (zeros(sectors), zeros(cache_sectors(slots, block)));
        let test = CacheFixture::with_model(origin, cache, seed, DriveModel::FAST);
        let disk: Arc<dyn Disk> = test.volume.clone();
        let history = History::blank(seed, SectorCount(sectors));
        let mut life = Life { rng, test, disk, history, sectors, block };
        life.reload();
        life
    }

    fn reload(&mut self) {
        let options = OPTIONS[self.rng.usize(..OPTIONS.len())];
        self.test.load(&table(self.sectors, self.block, options));
    }

    fn run(mut self, rounds: u64) {
        for _ in 0..rounds {
            self.round();
            self.between();
        }
        self.test.message("flush").expect("no drive fails");
        assert_eq!(self.test.status().dirty(), 0);
        self.test.load(&format!("0 {} linear origin 0", self.sectors));
        self.judge_all();
    }

    /// Many at once, then everything is read and judged.
    fn round(&mut self) {
        let running = self.workload().start(&self.test.sim, &self.disk, &self.history);
        self.accompany(&running);
        self.test.check();
        self.judge_all();
        self.test.forget();
    }

    fn workload(&mut self) -> Workload {
        let rng = &mut self.rng;
        let mixed = Workload::mixed(rng.u64(..), ROUND_OPS);
        let (in_flight, max) = (rng.u16(1..=8), SectorCount([8, 8, 8, 32, 128][rng.usize(..5)]));
        let pause = Duration::from_micros([0, 0, 20, 100][rng.usize(..4)]);
        Workload { in_flight, max, pause, ..mixed }
    }

    fn accompany(&mut self, running: &Running) {
        while !running.is_done() {
            for _ in 0..self.rng.u16(1..2000) {
                self.test.sim.step();
            }
            match self.rng.u8(..32) {
                0 => _ = self.test.start_message("flush"),
                1 => _ = self.test.start_message("flush_on_suspend"),
                2 => self.suspend(),
                3 => self.reload(),
                _ => self.test.look(|_, state| state.check_whole()),
            }
        }
        self.history.verdict().unwrap_or_else(|wrong| panic!("{wrong}"));
    }

    fn suspend(&mut self) {
        self.test.suspend([SuspendMode::Flush, SuspendMode::NoFlush][self.rng.usize(..2)]);
        self.test.resume();
    }

    fn judge_all(&self) {
        let whole = range(0, self.sectors);
        let ticket = self.history.submit(Op::Read, whole, cairn_block::Flags::empty());
        let bytes = self.test.read(0, self.sectors).expect("no drive fails");
        self.history.complete(ticket, Ok(()), &bytes);
        self.history.verdict().unwrap_or_else(|wrong| panic!("{wrong}"));
        self.history.go_on(History::contents(Sector(0), &bytes));
    }

    /// What happens to a volume that has nothing to do.
    fn between(&mut self) {
        match self.rng.u8(..8) {
            0 | 1 => self.reload(),
            2 => self.suspend(),
            3 => self.test.run(Duration::from_millis(self.rng.u64(..200))),
            4 => _ = self.test.message("cleaner").expect("no drive fails"),
            _ => (),
        }
    }
}

fn from_environment(name: &str, usual: u64) -> u64 {
    let Ok(value) = std::env::var(name) else { return usual };
    value.parse().unwrap_or_else(|_| panic!("{name}: found '{value}', expected a number"))
}

/// How far the soak is, told now and then; and how to repeat the life that failed.
struct Progress {
    seed: u64,
    life: u64,
    done: u64,
    total: u64,
    began: Instant,
    told: Instant,
}

impl Progress {
    #[expect(clippy::disallowed_methods, reason = "tells a person how long it takes")]
    fn now() -> Instant {
        Instant::now()
    }

    fn tell(&mut self) {
        let now = Progress::now();
        if now.duration_since(self.told) < TELL_EVERY && self.done < self.total {
            return;
        }
        self.told = now;
        let rate = self.done as f64 / now.duration_since(self.began).as_secs_f64().max(1e-9);
        let (seed, life, done, total) = (self.seed, self.life, self.done, self.total);
        let left = (total - done) as f64 / rate;
        eprintln!(
            "soak: {done} of {total} operations, {rate:.0}/s, {left:.0} s left; \
             go on with CAIRN_SEED={seed} CAIRN_SOAK_FROM={life}"
        );
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let (seed, life, ops) = (self.seed, self.life, LIFE_ROUNDS * ROUND_OPS);
            eprintln!(
                "replay: CAIRN_SEED={seed} CAIRN_SOAK_FROM={life} CAIRN_SOAK_OPS={ops} \
                 cargo test -p cairn-targets --lib soak"
            );
        }
    }
}

#[test]
fn a_long_soak_reads_what_a_disk_may_hold() {
    let (seed, first) = (from_environment("CAIRN_SEED", SEED), "CAIRN_SOAK_FROM");
    let (life, total) = (from_environment(first, 0), from_environment("CAIRN_SOAK_OPS", OPS));
    let now = Progress::now();
    let mut progress = Progress { seed, life, done: 0, total, began: now, told: now };
    while progress.done < total {
        let rounds = (total - progress.done).div_ceil(ROUND_OPS).min(LIFE_ROUNDS);
        Life::begin(seed, progress.life).run(rounds);
        progress.life += 1;
        progress.done = (progress.done + rounds * ROUND_OPS).min(total);
        progress.tell();
    }
}

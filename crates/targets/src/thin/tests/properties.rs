//! Random lives of a pool and its volumes against the naive model.

use super::super::model::Model;
use super::fixture::*;
use cairn_block::Flags;

const BLOCKS: u64 = 70;

/// One life.
struct Life {
    rng: fastrand::Rng,
    test: PoolFixture,
    model: Model,
    next_id: u32,
    features: &'static str,
    /// The pool may be made this long.
    data_blocks_max: u64,
    /// The volumes have an external origin.
    has_origin: bool,
}

fn name(id: u32) -> String {
    format!("v{id}")
}

impl Life {
    fn new(seed: u64) -> Life {
        let mut rng = fastrand::Rng::with_seed(seed);
        let choices = [
            "0 0",
            "0 1 error_if_no_space",
            "0 2 detect_zeroes unmap",
            "3 3 detect_zeroes unmap error_if_no_space",
            "0 1 no_discard_passdown",
            // Nobody makes space while a write waits.
            "0 2 no_space_timeout 1",
        ];
        let features = choices[rng.usize(..choices.len())];
        // Small pools fill up; writes fail then, so that nothing waits for ever.
        let full = features.contains("no_space");
        let data = if full { rng.u64(20..80) } else { 600 };
        let data_blocks_max = data + rng.u64(..20);
        let mut test = PoolFixture::new([64, 256, 512][rng.usize(..3)], data_blocks_max);
        test.data_blocks = data;
        let has_origin = rng.u8(..3) == 0;
        let origin = if has_origin { ORIGIN_SECTORS } else { 0 };
        let mut model = Model::new(BLOCK, (0..origin).map(initial_byte).collect());
        model.create(0, BLOCKS * BLOCK);
        let life = Life { rng, test, model, next_id: 1, features, data_blocks_max, has_origin };
        life.test.load_pool(features);
        life.test.message(&["create_thin", "0"]).unwrap();
        life.load(0);
        life
    }

    fn load(&self, id: u32) {
        let origin = if self.has_origin { " origin" } else { "" };
        let table = format!("0 {} thin @pool {id}{origin}", BLOCKS * BLOCK);
        self.test.load(&name(id), &table);
    }

    fn volume(&mut self) -> u32 {
        let ids = self.model.ids();
        ids[self.rng.usize(..ids.len())]
    }

    fn range(&mut self) -> (u64, u64) {
        let size = BLOCKS * BLOCK;
        let (start, count) = match self.rng.u8(..4) {
            0 => (self.rng.u64(..size), self.rng.u64(1..10)),
            1 => (self.rng.u64(..BLOCKS) * BLOCK, BLOCK),
            2 => (self.rng.u64(..BLOCKS) * BLOCK, BLOCK * self.rng.u64(1..6)),
            _ => (self.rng.u64(..size), self.rng.u64(1..4 * BLOCK)),
        };
        (start, count.min(size - start))
    }

    fn step(&mut self) {
        let id = self.volume();
        let (start, count) = self.range();
        let volume = name(id);
        match self.rng.u8(..100) {
            0..45 => {
                let byte = if self.rng.u8(..4) == 0 { 0 } else { self.rng.u8(1..) };
                let fua = self.rng.u8(..8) == 0;
                let flags = if fua { Flags::FUA } else { Flags::empty() };
                let io = |env: &_| write_io(env, start, count, byte).with(flags);
                let ok = self.test.io(&volume, io).is_ok();
                self.model.write(id, start, count, byte, ok);
            }
            45..65 => {
                let bytes = self.test.bytes(&volume, start, count);
                self.model.read(id, start, &bytes);
            }
            65..73 => {
                let ok = self.test.zero(&volume, start, count).is_ok();
                self.model.write(id, start, count, 0, ok);
            }
            73..85 => {
                let ok = self.test.discard(&volume, start, count).is_ok();
                self.model.discard(id, start, count, ok);
            }
            85..90 => self.test.flush(&volume).unwrap(),
            90..94 => self.snapshot(id),
            94..96 => self.delete(id),
            96..98 => {
                let longer = self.rng.u64(self.test.data_blocks..=self.data_blocks_max);
                self.test.data_blocks = longer;
                self.test.load_pool(self.features);
            }
            _ => self.reopen(),
        }
        self.test.check_metadata();
        // No device fails here.
        assert!(!self.test.status("pool").contains("needs_check"));
    }

    fn snapshot(&mut self, origin: u32) {
        let new = self.next_id;
        let (id, from) = (new.to_string().leak(), origin.to_string().leak());
        if self.model.ids().len() < 6 && self.test.message(&["create_snap", id, from]).is_ok() {
            self.next_id += 1;
            self.model.snapshot(new, origin);
            self.load(new);
        }
    }

    fn delete(&mut self, id: u32) {
        if self.model.ids().len() == 1 {
            return;
        }
        self.test.remove(&name(id));
        if self.test.message(&["delete", id.to_string().leak()]).is_ok() {
            self.model.delete(id);
        } else {
            self.load(id);
        }
    }

    /// Everything is closed and opened again.
    fn reopen(&mut self) {
        for id in self.model.ids() {
            self.test.remove(&name(id));
        }
        self.test.remove("pool");
        self.test = self.test.reopen_durable();
        self.test.load_pool(self.features);
        for id in self.model.ids() {
            self.load(id);
        }
    }

    fn check(&mut self) {
        self.test.check_metadata();
        for id in self.model.ids() {
            for block in 0..BLOCKS {
                let bytes = self.test.bytes(&name(id), block * BLOCK, BLOCK);
                self.model.read(id, block * BLOCK, &bytes);
            }
        }
    }
}

fn live(seed: u64, steps: u32) {
    let mut life = Life::new(seed);
    for _ in 0..steps {
        life.step();
    }
    life.check();
    life.reopen();
    life.check();
}

#[test]
fn random_lives_agree_with_the_model() {
    for seed in 0..16 {
        let lived = std::panic::catch_unwind(|| live(seed, 150));
        assert!(lived.is_ok(), "seed {seed}");
    }
}

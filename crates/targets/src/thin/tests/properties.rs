//! Random lives of a pool and its volumes against the naive model.

use super::super::model::Model;
use super::bed::*;
use cairn_block::Flags;
use cairn_format::thin::blocks::MemoryBlocks;
use cairn_format::thin::check::{Limits, Severity, check};

const BLOCKS: u64 = 70;

/// One life.
struct Life {
    rng: fastrand::Rng,
    bed: Bed,
    model: Model,
    next_id: u32,
    features: &'static str,
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
        ];
        let features = choices[rng.usize(..choices.len())];
        // Small pools fill up; they fail then, so that nothing waits for ever.
        let full = features.contains("error_if_no_space");
        let data = if full { rng.u64(20..80) } else { 600 };
        let bed = Bed::new([64, 256, 512][rng.usize(..3)], data);
        let mut life = Life { rng, bed, model: Model::new(BLOCK), next_id: 1, features };
        life.bed.load_pool(features);
        life.bed.message(&["create_thin", "0"]).unwrap();
        life.model.create(0, BLOCKS * BLOCK);
        life.bed.load_thin("v0", 0, BLOCKS);
        life
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
                let ok = self.bed.io(&volume, io).is_ok();
                self.model.write(id, start, count, byte, ok);
            }
            45..65 => {
                let bytes = self.bed.bytes(&volume, start, count);
                self.model.read(id, start, &bytes);
            }
            65..73 => {
                let ok = self.bed.zero(&volume, start, count).is_ok();
                self.model.write(id, start, count, 0, ok);
            }
            73..85 => {
                let ok = self.bed.discard(&volume, start, count).is_ok();
                self.model.discard(id, start, count, ok);
            }
            85..90 => self.bed.flush(&volume).unwrap(),
            90..94 => self.snapshot(id),
            94..96 => self.delete(id),
            96..98 => self.bed.load_pool(self.features),
            _ => self.reopen(),
        }
    }

    fn snapshot(&mut self, origin: u32) {
        let new = self.next_id;
        let (id, from) = (new.to_string().leak(), origin.to_string().leak());
        if self.model.ids().len() < 6 && self.bed.message(&["create_snap", id, from]).is_ok() {
            self.next_id += 1;
            self.model.snapshot(new, origin);
            self.bed.load_thin(&name(new), new, BLOCKS);
        }
    }

    fn delete(&mut self, id: u32) {
        if self.model.ids().len() == 1 {
            return;
        }
        self.bed.remove(&name(id));
        if self.bed.message(&["delete", id.to_string().leak()]).is_ok() {
            self.model.delete(id);
        } else {
            self.bed.load_thin(&name(id), id, BLOCKS);
        }
    }

    /// Everything is closed and opened again.
    fn reopen(&mut self) {
        for id in self.model.ids() {
            self.bed.remove(&name(id));
        }
        self.bed.remove("pool");
        self.bed = self.bed.reopen_durable();
        self.bed.load_pool(self.features);
        for id in self.model.ids() {
            self.bed.load_thin(&name(id), id, BLOCKS);
        }
    }

    fn check(&mut self) {
        let metadata = self.bed.drive("meta").durable().to_vec();
        let checked = check(&mut MemoryBlocks::new(&metadata), Limits::default());
        let report = checked.expect("memory can be read");
        assert!(report.severity < Severity::Repairable, "{:?}", report.findings);
        for id in self.model.ids() {
            for block in 0..BLOCKS {
                let bytes = self.bed.bytes(&name(id), block * BLOCK, BLOCK);
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

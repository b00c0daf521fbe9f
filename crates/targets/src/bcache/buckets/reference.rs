//! The reference model of the allocator: what is known of each bucket, by number, and a search over
//! all of them whenever free ones are asked for.

use std::collections::{BTreeMap, BTreeSet};

use cairn_format::bcache::{Generation, Geometry, Key, Pointer, STALE_MAX};
use proptest::prelude::*;

use super::Buckets;
use crate::bcache::work;

/// A bucket as the model knows it.
#[derive(Default, Clone)]
struct State {
    /// The extents in it, each with where its key was laid.
    extents: Vec<Key>,
    is_metadata: bool,
    is_open: bool,
    writing: Vec<Pointer>,
    /// Extents that tasks copy from it.
    copied: Vec<Key>,
    changed_in: u32,
    /// Uses since the priorities were planned, and the age of the oldest pointer.
    ahead: u32,
    oldest: u32,
}

struct Model {
    buckets: Buckets,
    states: BTreeMap<u64, State>,
    free: BTreeSet<u64>,
    generations: BTreeMap<u64, u8>,
    next: u32,
    settled: u32,
    bucket_sectors: u64,
}

impl Model {
    fn new(count: u64) -> Model {
        let geometry = Geometry::new(1, 16, count, 2).expect("legal");
        let usable = geometry.usable();
        let mut buckets = Buckets::new(geometry, &[]);
        buckets.serve_clients();
        Model {
            buckets,
            states: usable.clone().map(|at| (at, State::default())).collect(),
            free: BTreeSet::new(),
            generations: usable.map(|at| (at, 0)).collect(),
            next: 1,
            settled: 0,
            bucket_sectors: 16,
        }
    }

    fn raise(&mut self, at: u64) {
        let generation = self.generations.get_mut(&at).expect("usable");
        *generation = generation.wrapping_add(1);
        self.state(at).ahead += 1;
    }

    fn state(&mut self, at: u64) -> &mut State {
        self.states.get_mut(&at).expect("usable")
    }

    fn took(&mut self, pointer: Option<Pointer>) -> Option<u64> {
        let at = pointer?.sector() / self.bucket_sectors;
        assert!(self.free.remove(&at), "K1: {at} was free");
        self.raise(at);
        let state = self.state(at);
        state.oldest += u32::from(state.oldest > 0);
        let generation = Generation(self.generations[&at]);
        assert_eq!(pointer.map(|own| own.generation()), Some(generation), "K2");
        Some(at)
    }

    fn refill(&mut self) {
        while self.buckets.refill() {}
        let settled = self.settled;
        let is_free = |state: &State| {
            let is_busy = !state.writing.is_empty() || !state.copied.is_empty();
            let is_used = state.is_metadata || state.is_open || is_busy;
            let may_be_taken = state.oldest.max(state.ahead) + 2 <= u32::from(STALE_MAX);
            state.extents.is_empty() && !is_used && state.changed_in <= settled && may_be_taken
        };
        let found = self.states.iter().filter(|(_, state)| is_free(state));
        self.free.extend(found.map(|(at, _)| *at));
    }

    /// The `pick`th bucket of those that `is_one` of.
    fn pick(&self, pick: usize, is_one: impl Fn(&State) -> bool) -> Option<u64> {
        let all: Vec<u64> =
            self.states.iter().filter(|(_, it)| is_one(it)).map(|(at, _)| *at).collect();
        (!all.is_empty()).then(|| all[pick % all.len()])
    }

    fn end_write(&mut self, pick: usize) {
        let Some(at) = self.pick(pick, |it| !it.writing.is_empty()) else { return };
        let pointer = self.state(at).writing.pop().expect("one is under way");
        let place = self.buckets.end_write(pointer.sector());
        assert_eq!(place, pointer);
        if pick.is_multiple_of(3) {
            return;
        }
        let key = Key::new(0, 1000 + pointer.sector(), 1).at(place);
        let key = key.with_dirty(pick.is_multiple_of(2));
        self.buckets.count(&key);
        let next = self.next;
        let state = self.state(at);
        state.extents.push(key);
        state.changed_in = next;
    }

    fn change(&mut self, kind: u8, pick: usize) {
        work::begin();
        match kind {
            0 | 1 => {
                let taken = self.buckets.take_for_data();
                if let Some(at) = self.took(taken) {
                    self.state(at).is_open = true;
                }
            }
            2 => {
                let taken = self.buckets.take_for_metadata();
                if let Some(at) = self.took(taken) {
                    self.state(at).is_metadata = true;
                }
            }
            3 => {
                let Some(at) = self.pick(pick, |it| it.is_open) else { return };
                let generation = Generation(self.generations[&at]);
                let begun = self.state(at).writing.len() as u64;
                let pointer = Pointer::new(at * self.bucket_sectors + begun % 16, generation);
                self.buckets.begin_write(pointer);
                self.state(at).writing.push(pointer);
            }
            4 => self.end_write(pick),
            5 | 6 => {
                let Some(at) = self.pick(pick, |it| !it.extents.is_empty()) else { return };
                let key = self.state(at).extents.pop().expect("it has some");
                self.buckets.replace(&[key], &[]);
                let next = self.next;
                self.state(at).changed_in = next;
            }
            7 => {
                let Some(at) = self.pick(pick, |it| it.is_open) else { return };
                self.buckets.close(at);
                self.state(at).is_open = false;
            }
            8 => {
                let Some(at) = self.pick(pick, |it| it.is_metadata) else { return };
                if pick.is_multiple_of(2) {
                    self.buckets.structure_replaced(&[at]);
                } else {
                    let generation = Generation(self.generations[&at]);
                    let sector = at * self.bucket_sectors;
                    self.buckets.node_replaced(Pointer::new(sector, generation));
                    self.raise(at);
                    self.state(at).oldest += 1;
                }
                self.state(at).is_metadata = false;
            }
            9 => {
                self.buckets.begin_checkpoint();
                self.next += 1;
                if pick.is_multiple_of(2) {
                    self.settled = self.next - 1;
                    self.buckets.settle(self.settled);
                }
            }
            10 => {
                self.buckets.begin_records();
                let mut records = Vec::new();
                while !self.buckets.records(&mut records) {}
                for (at, state) in &mut self.states {
                    state.ahead = 0;
                    assert_eq!(records[*at as usize].generation.0, self.generations[at], "K2");
                }
            }
            11 => {
                let Some(at) = self.pick(pick, |it| !it.extents.is_empty()) else { return };
                let key = self.state(at).extents[0];
                assert!(self.buckets.begin_copy(&key), "R6: {at} has data");
                self.state(at).copied.push(key);
            }
            12 => {
                let Some(at) = self.pick(pick, |it| !it.copied.is_empty()) else { return };
                let key = self.state(at).copied.pop().expect("one is under way");
                self.buckets.end_copy(&key);
            }
            _ => self.refill(),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The free buckets are those that a search over all buckets finds, also when generations wrap.
    #[test]
    fn free_buckets_are_those_that_a_search_over_all_finds(
        changes in proptest::collection::vec((0..14_u8, any::<usize>()), 1..3000),
        count in 12..40_u64,
    ) {
        let mut model = Model::new(count);
        for (kind, pick) in changes {
            model.change(kind, pick);
            prop_assert_eq!(model.buckets.free(), model.free.len());
        }
        model.refill();
        model.buckets.check_state();
        let mut taken = BTreeSet::new();
        while let Some(pointer) = model.buckets.take_for_metadata() {
            taken.insert(pointer.sector() / model.bucket_sectors);
        }
        prop_assert_eq!(taken, model.free);
    }
}

#[test]
fn a_bucket_that_is_used_hundreds_of_times_wraps_its_generation_and_stays_exact() {
    let mut model = Model::new(13);
    for round in 0..2000 {
        // Nodes and data in turns; the priorities are planned now and then.
        for (kind, pick) in [(2, 0), (8, 0), (0, 0), (3, 0), (4, 1), (7, 0), (5, 0), (9, 0)] {
            model.change(kind, pick + usize::from(kind == 8) * (round % 2));
        }
        if round % 20 == 0 {
            model.change(10, 0);
        }
        model.refill();
        model.buckets.check_state();
        assert_eq!(model.buckets.free(), model.free.len());
    }
    let uses: u32 = model.generations.values().map(|it| u32::from(*it)).sum();
    assert!(uses > 0 && model.states.values().any(|it| it.oldest > 0));
}

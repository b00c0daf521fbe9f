//! The index's own invariants, checked as a whole; the reference model's property test calls it.

use std::collections::BTreeMap;

use super::order::{Order, QueuePosition};
use super::{COVERED, DIAGONAL, IN_WRITEBACK, Index, LEAVING, Life, STRETCH};

impl Index {
    /// Checks what must hold between any two steps. Linear in the cache.
    pub fn check(&self) {
        self.groups.check();
        let mut newest = 0;
        let (mut in_writeback, mut uncommitted) = (0, 0);
        let (mut singles, mut diagonals) = (0, std::collections::BTreeSet::new());
        let mut covered = 0;
        for run in self.runs() {
            let life = self.life(&run);
            in_writeback += if run.has(IN_WRITEBACK) { run.len } else { 0 };
            uncommitted += if life == Life::Uncommitted { u64::from(run.len) } else { 0 };
            assert!(!run.has(IN_WRITEBACK) || life == Life::Committed, "I6");
            if run.has(COVERED) {
                assert_ne!(life, Life::Uncommitted, "a version never frozen is dropped");
                covered += u64::from(run.len);
                continue;
            }
            newest += u64::from(run.len);
            for (block, slot) in (run.block..).zip(run.slot..run.end()) {
                assert_eq!(self.newest(block), Some(slot), "the newest is found");
                assert_eq!(self.first_cached(block, 1), Some((block, slot)));
                if run.has(DIAGONAL) {
                    diagonals.insert((block / STRETCH, super::diagonal_of(block, slot)));
                } else {
                    singles += 1;
                }
            }
        }
        assert_eq!(newest, self.cached);
        assert_eq!((in_writeback, uncommitted), (self.in_writeback, self.uncommitted));
        assert_eq!(self.lookup.len(), singles + diagonals.len(), "nobody else is entered");
        self.check_versions(covered);
        self.check_space(newest + covered);
        self.check_order();
    }

    fn check_versions(&self, covered: u64) {
        assert_eq!(covered, self.older.values().map(|older| older.len() as u64).sum::<u64>());
        for &block in self.older.keys() {
            assert!(!self.older[&block].is_empty());
            let versions: Vec<_> = self.versions(block).collect();
            let runs = versions.iter().map(|&slot| self.at(slot).expect("a version has data"));
            let mut last = None;
            for (place, run) in runs.enumerate() {
                assert_eq!(run.block, block);
                assert_eq!(run.has(COVERED), place > 0);
                let is_last = place + 1 == versions.len();
                assert!(!run.has(IN_WRITEBACK) || is_last, "I5");
                assert!(last.is_none_or(|last| last > run.seq), "newer means a higher seq");
                last = Some(run.seq);
            }
        }
    }

    fn check_space(&self, held: u64) {
        let free = (0..self.len()).filter(|&slot| self.space.is_free(slot));
        let free = free.inspect(|&slot| assert!(self.at(slot).is_none(), "I3")).count() as u64;
        assert_eq!(free, u64::from(self.free_count()));
        let doomed: u64 = self.doomed.iter().map(|slots| u64::from(slots.end - slots.start)).sum();
        assert!(free + held + doomed <= u64::from(self.len()));
        for slots in &self.doomed {
            assert_eq!(self.flights.first_part(slots), (slots.end, true), "doomed means busy");
        }
    }

    fn check_order(&self) {
        let mut linked = BTreeMap::new();
        let mut place = QueuePosition::default();
        while let Some(inserted) = self.inserted_from(place) {
            for run in self.left_of(&inserted) {
                (run.slot..run.end()).for_each(|slot| _ = linked.insert(slot, inserted.number));
            }
            place = Order::after(&inserted);
        }
        for run in self.runs().filter(|run| !run.has(COVERED) || run.has(IN_WRITEBACK)) {
            let all = (run.slot..run.end()).all(|slot| linked.contains_key(&slot));
            // A version that was uncovered again may have lost its position.
            assert!(all || run.has(LEAVING) || !self.older.is_empty(), "{run:?} has its place");
        }
    }
}

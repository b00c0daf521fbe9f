//! Counters that cost the ready path nothing: one padded row per reactor, summed on read.
//!
//! Only its reactor writes a row, so a plain load and store suffice. Clearing never writes a
//! row: it moves a baseline that reads subtract.

use std::array;

use crate::env::Env;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};

#[repr(align(128))]
struct Row<const N: usize>([AtomicU64; N]);

/// `N` counters.
pub struct Counters<const N: usize> {
    rows: Box<[Row<N>]>,
    baseline: Mutex<[u64; N]>,
}

impl<const N: usize> Counters<N> {
    /// Counters at zero, for as many reactors as `env`'s world has.
    pub fn new(env: &Env) -> Counters<N> {
        let row = |_| Row(array::from_fn(|_| AtomicU64::new(0)));
        let rows = (0..env.post().reactors()).map(row).collect();
        Counters { rows, baseline: Mutex::new([0; N]) }
    }

    /// Adds to a counter, on the reactor of `env`.
    pub fn add(&self, env: &Env, index: usize, count: u64) {
        let cell = &self.rows[usize::from(env.reactor().0)].0[index];
        cell.store(cell.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }

    fn totals(&self) -> [u64; N] {
        array::from_fn(|index| {
            self.rows.iter().map(|row| row.0[index].load(Ordering::Relaxed)).sum()
        })
    }

    /// The counters since they were last cleared.
    pub fn read(&self) -> [u64; N] {
        let (totals, baseline) = (self.totals(), *self.baseline.lock());
        array::from_fn(|index| totals[index] - baseline[index])
    }

    /// Starts again from zero.
    pub fn clear(&self) {
        *self.baseline.lock() = self.totals();
    }
}

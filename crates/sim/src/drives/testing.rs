//! A driver of timing models for tests: random arrivals at random times, and checks of D1 and D2.

use std::collections::BTreeMap;

use cairn_block::{Op, Sector, SectorCount, SectorRange, Time};

use super::{Arrival, OpId, Timing};

pub(super) fn arrival(id: OpId, op: Op, start: u64, count: u64) -> Arrival {
    let range = SectorRange::new(Sector(start), SectorCount(count));
    Arrival { id, op, range, is_fua: false }
}

/// Runs a model until nothing is in flight; returns the ends, in order, with their times.
pub(super) fn finish(model: &mut impl Timing) -> Vec<(Time, OpId)> {
    let mut ends = Vec::new();
    let mut ended = Vec::new();
    while let Some(now) = model.next() {
        model.go_on(now, &mut ended);
        ends.extend(ended.drain(..).map(|id| (now, id)));
    }
    ends
}

/// A random operation below `sectors`.
fn random(rng: &mut fastrand::Rng, id: OpId, sectors: u64) -> Arrival {
    let op = match rng.u8(..16) {
        0 => Op::Flush,
        1 => Op::Discard,
        2 => Op::WriteZeroes,
        3..8 => Op::Read,
        _ => Op::Write,
    };
    let count = if op == Op::Flush { 0 } else { 8 * rng.u64(1..6) };
    let start = if op == Op::Flush { 0 } else { 8 * rng.u64(..sectors / 8 - 6) };
    let is_fua = op == Op::Write && rng.u8(..8) == 0;
    Arrival { is_fua, ..arrival(id, op, start, count) }
}

/// D1: random operations in a small region, at random times, some together, each end once. Calls
/// `flushed` at the end of each flush with the model. Returns the ends, for comparison.
pub(super) fn conserve<T: Timing>(
    model: &mut T,
    seed: u64,
    mut flushed: impl FnMut(&T),
) -> Vec<(Time, OpId)> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut open: BTreeMap<OpId, Op> = BTreeMap::new();
    let (mut ends, mut ended) = (Vec::new(), Vec::new());
    let mut now = Time(0);
    for new_id in 0..400 {
        let new = random(&mut rng, new_id, 4000);
        open.insert(new_id, new.op);
        model.arrive(now, new);
        if rng.bool() {
            continue;
        }
        let until = Time(now.0 + rng.u64(..4_000_000));
        while let Some(at) = model.next().filter(|at| *at <= until) {
            assert!(at >= now, "time never goes back");
            now = at;
            model.go_on(now, &mut ended);
            for id in ended.drain(..) {
                let op = open.remove(&id).expect("it ends once");
                ends.push((now, id));
                if op == Op::Flush {
                    flushed(model);
                }
            }
        }
        now = until;
        model.go_on(now, &mut ended);
        assert!(ended.is_empty(), "nothing ends between the times that it told");
    }
    for (at, id) in finish(model) {
        open.remove(&id).expect("it ends once");
        ends.push((at, id));
    }
    assert!(open.is_empty(), "all end: {open:?}");
    let used = model.used();
    assert_eq!(used.requests, 400);
    ends
}

//! The kin of an origin: every snapshot that must copy a chunk before it is overwritten.
//!
//! The list is kept once per reactor, so that a write to the origin takes only its own reactor's
//! lock. Snapshots are added and removed while the origin is written. To make a snapshot of one
//! moment, the operator suspends the origin during the change, as with the kernel.

use std::sync::{Arc, Weak};

use cairn_block::sync::{Mutex, Padded};
use cairn_block::{Copier, Env, SectorRange};

use super::core::{Condition, Core};
use super::table::{OriginPlan, Waiter};

/// Memory for copies, all snapshots of one origin together.
const BUDGET_BYTES: u64 = 32 << 20;

type Row = Padded<Mutex<Vec<Arc<Core>>>>;

/// The snapshots of one origin.
pub(super) struct Kin {
    rows: Box<[Row]>,
    merging: Mutex<Weak<Core>>,
    /// Memory for copies.
    pub budget: Copier,
}

impl Kin {
    pub fn new(env: &Env) -> Arc<Kin> {
        Arc::new(Kin {
            rows: (0..env.post().reactors()).map(|_| Row::default()).collect(),
            merging: Mutex::default(),
            budget: Copier::new(BUDGET_BYTES),
        })
    }

    /// From now on writes to the origin make exceptions in `core` first, and no more in `former`:
    /// each write in one of them.
    pub fn add(&self, core: &Arc<Core>, former: Option<&Arc<Core>>) {
        for row in &self.rows {
            let mut cores = row.0.lock();
            cores.retain(|other| former.is_none_or(|former| !Arc::ptr_eq(other, former)));
            if !cores.iter().any(|other| Arc::ptr_eq(other, core)) {
                cores.push(core.clone());
            }
        }
    }

    /// No more.
    pub fn remove(&self, core: &Arc<Core>) {
        for row in &self.rows {
            row.0.lock().retain(|other| !Arc::ptr_eq(other, core));
        }
    }

    /// Takes the place of the only merging snapshot; false if there is another.
    pub fn begin_merging(&self, core: &Arc<Core>) -> bool {
        let mut merging = self.merging.lock();
        let other = merging.upgrade().is_some_and(|other| !Arc::ptr_eq(&other, core));
        if !other {
            *merging = Arc::downgrade(core);
        }
        !other
    }

    /// Leaves that place.
    pub fn end_merging(&self, core: &Arc<Core>) {
        let mut merging = self.merging.lock();
        if merging.upgrade().is_some_and(|other| Arc::ptr_eq(&other, core)) {
            *merging = Weak::new();
        }
    }

    /// The snapshots, as this reactor knows them.
    pub fn cores(&self, env: &Env) -> Vec<Arc<Core>> {
        self.rows[usize::from(env.reactor().0)].0.lock().clone()
    }

    /// True if the origin has no snapshot, as this reactor knows.
    pub fn is_empty(&self, env: &Env) -> bool {
        self.rows[usize::from(env.reactor().0)].0.lock().is_empty()
    }

    /// Decides about a write to a range of the origin: whether every snapshot has it. If it has
    /// to wait for a copy under way, `waiter` joins who wait for that.
    pub fn plan(&self, env: &Env, range: SectorRange, waiter: &dyn Fn() -> Waiter) -> OriginPlan {
        let cores = self.rows[usize::from(env.reactor().0)].0.lock();
        for core in cores.iter() {
            match core.condition() {
                Condition::Valid | Condition::Overflow => (),
                Condition::Ending => return OriginPlan::Missing,
                Condition::Stopped if core.has_all(range) => continue,
                Condition::Stopped => return OriginPlan::Refused,
                Condition::Closed => {
                    core.note_missed(range);
                    continue;
                }
                Condition::Invalid => continue,
            }
            let (first, end) = core.chunks_of(range);
            let plan = core.exceptions.plan_origin_write(first, end, waiter);
            if plan != OriginPlan::Clear {
                return plan;
            }
        }
        OriginPlan::Clear
    }
}

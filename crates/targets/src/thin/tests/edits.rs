//! Edits: what they cost, and what a power cut leaves of them.

use std::cell::RefCell;
use std::rc::Rc;

use super::fixture::*;
use crate::fixture::DRIVE_TIME;
use crate::thin::{Plan, ThinDevice};
use cairn_block::{MessageError, Op};

impl PoolFixture {
    /// The plan of a verb that raises the transaction id.
    fn plan(&self) -> Plan {
        let figures = self.ask(async |_, pool| pool.figures().unwrap());
        Plan { transaction_id: figures.transaction_id, time: figures.time, raises: true }
    }

    fn snapshot(&self, id: u32, origin: u32) -> Result<ThinDevice, MessageError> {
        let plan = self.plan();
        self.ask(async move |env, pool| pool.create_snapshot(env, id, origin, plan).await)
    }

    fn ids(&self) -> Vec<u32> {
        let devices = self.ask(async |_, pool| pool.devices().unwrap());
        devices.iter().map(|device| device.id).collect()
    }

    /// How often the data device was flushed while this ran.
    fn data_flushes_of<T>(&self, act: impl FnOnce() -> T) -> usize {
        self.forget();
        act();
        self.ops("data").iter().filter(|(op, ..)| *op == Op::Flush).count()
    }
}

#[test]
fn thin_snapshot_costs_two_data_flushes() {
    let test = PoolFixture::with_volume(256, 64, 8);
    for id in 1..=3 {
        test.write("thin", u64::from(id) * BLOCK, BLOCK, 1).unwrap();
        assert_eq!(test.data_flushes_of(|| test.snapshot(id, 0).unwrap()), 2, "snapshot {id}");
    }
    assert_eq!(test.data_flushes_of(|| test.snapshot(4, 1).unwrap()), 1, "no table serves 1");
    let plan = test.plan();
    let create = async move |env: &_, pool: &crate::thin::ThinPool| {
        pool.create_thin(env, 5, plan).await.unwrap();
    };
    assert_eq!(test.data_flushes_of(|| test.ask(create)), 1);
    let delete = || test.ask(async |env, pool| pool.delete(env, 1).await.unwrap());
    assert_eq!(test.data_flushes_of(delete), 1);
    let counters = (test.plan().transaction_id, test.plan().time);
    assert_eq!((test.ids(), counters), (vec![0, 2, 3, 4, 5], (5, 4)));
}

#[test]
fn a_power_cut_leaves_the_snapshot_and_the_raised_transaction_id_or_neither() {
    let test = PoolFixture::with_volume(256, 64, 8);
    test.write_through("thin", 0, 2 * BLOCK, 1);
    test.write("thin", BLOCK, BLOCK, 2).unwrap();
    let made = Rc::new(RefCell::new(None));
    let (plan, target, answer) = (test.plan(), test.target("pool"), made.clone());
    test.sim.block_on(0, |env| {
        env.clone().spawn(async move {
            let pool = target.as_any().and_then(|any| any.downcast_ref::<crate::thin::ThinPool>());
            let created = pool.expect("a pool").create_snapshot(&env, 1, 0, plan).await;
            *answer.borrow_mut() = Some(created.unwrap());
        });
        std::future::ready(())
    });
    let mut seen = [0, 0];
    while made.borrow().is_none() || seen[1] == 0 {
        let again = test.reopen_durable();
        again.load_pool("0 0");
        let raised = again.plan().transaction_id == plan.transaction_id + 1;
        assert_eq!(again.ids() == [0, 1], raised, "X2");
        assert!(raised || made.borrow().is_none(), "durable when it is answered");
        seen[usize::from(raised)] += 1;
        if raised {
            again.load_thin("snap", 1, 8);
            let expected = [vec![1; BLOCK as usize], vec![2; BLOCK as usize]].concat();
            assert_eq!(again.bytes("snap", 0, 2 * BLOCK), expected, "X4");
        }
        again.check_metadata();
        test.sim.run_for(DRIVE_TIME / 2);
    }
    assert!(seen[0] > 1 && seen[1] > 0, "{seen:?}");
    let made = made.borrow().expect("answered");
    let counters = (made.id, made.transaction_id, made.creation_time);
    assert_eq!(counters, (1, plan.transaction_id, plan.time + 1), "X3");
}

#[test]
fn an_edit_whose_plan_is_outdated_changes_nothing() {
    let test = PoolFixture::with_volume(256, 64, 8);
    let plan = test.plan();
    test.message(&["create_snap", "1", "0"]).unwrap();
    for outdated in [plan, Plan { transaction_id: 7, ..test.plan() }] {
        let create = async move |env: &_, pool: &crate::thin::ThinPool| {
            pool.create_thin(env, 2, outdated).await.unwrap_err()
        };
        let refused = test.ask(create);
        assert!(matches!(refused, MessageError::Busy(_)), "{refused}");
        assert!(refused.to_string().contains("try again"), "{refused}");
    }
    assert_eq!((test.ids(), test.plan().transaction_id), (vec![0, 1], 0));
}

#[test]
fn a_commit_whose_edit_is_refused_makes_the_writes_durable() {
    let test = PoolFixture::with_volume(256, 64, 8);
    test.write("thin", 0, BLOCK, 1).unwrap();
    let refused = test.snapshot(0, 0).unwrap_err().to_string();
    assert!(refused.contains("EEXIST"), "{refused}");
    assert_eq!(test.plan().transaction_id, 0);
    test.pool_says(" rw ");
    test.write_through("thin", BLOCK, BLOCK, 2);
    let again = test.reopen_durable();
    again.load_pool("0 0");
    again.load_thin("thin", 0, 8);
    assert_eq!([again.bytes("thin", 0, 1), again.bytes("thin", BLOCK, 1)], [[1], [2]]);
    assert_eq!(again.ids(), [0]);
}

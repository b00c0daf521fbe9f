//! What waits: queued, held and requeued requests, ended from wherever.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use cairn_block::{Disk, Env, ErrorKind, Io, IoError, ReactorId};
use cairn_sim::{Fault, OpSet};

use crate::probe::{Bench, pattern, range};

#[test]
fn a_queued_request_is_mapped_again_on_its_own_reactor_whoever_says_so() {
    for seed in 0..20 {
        let bench = Bench::new(seed);
        let volume = bench.volume("v", "0 64 probe a 0 queue=1 piece=4");
        bench.write(&volume, range(0, 10), 1).unwrap();
        let seen = bench.take_seen();
        assert_eq!(seen.len(), 3, "each part was mapped once it was let go");
        assert!(seen.iter().all(|seen| seen.reactor == ReactorId(0)));
        assert_eq!(bench.read(&volume, range(0, 10)).unwrap(), pattern(range(0, 10), 1));
        bench.assert_clean();
    }
}

#[test]
fn a_held_completion_ends_when_the_target_says_so_from_another_reactor() {
    for seed in 0..20 {
        let bench = Bench::new(seed);
        let volume = bench.volume("v", "0 8 probe a 0 hold=1\n8 64 probe b 0 hold=1");
        bench.write(&volume, range(4, 8), 1).unwrap();
        bench.drive("b").faults().add(Fault::error(OpSet::READS));
        let result = bench.read(&volume, range(4, 8));
        assert_eq!(result, Err(IoError::injected(ErrorKind::Io)), "held errors stay errors");
        bench.assert_clean();
    }
}

#[test]
fn a_requeued_request_is_mapped_again_until_its_target_is_content() {
    let bench = Bench::new(1);
    let volume = bench.volume("v", "0 64 probe a 0 requeue=3");
    bench.drive("a").faults().add(Fault::error(OpSet::WRITES).shots(3));
    bench.write(&volume, range(0, 8), 5).unwrap();
    assert_eq!(bench.take_seen().len(), 4);
    bench.assert_clean();
}

#[test]
fn every_request_of_every_reactor_ends_exactly_once() {
    let bench = Bench::new(9);
    let volume = bench.volume("v", "0 500 probe a 0 queue=1 hold=1 piece=8");
    let ended = Rc::new(RefCell::new(vec![0; 90]));
    for number in 0..90u64 {
        let (disk, ended): (Arc<dyn Disk>, _) = (volume.clone(), ended.clone());
        let env: Env = bench.world.env((number % 3) as u16).clone();
        bench.world.env((number % 3) as u16).spawn(async move {
            let at = range(number * 5, 20);
            env.io(&disk, Io::read(at, env.segs(at.count))).await.unwrap();
            ended.borrow_mut()[number as usize] += 1;
        });
    }
    bench.world.run_until(|| ended.borrow().iter().all(|&count| count > 0));
    bench.world.run_for(std::time::Duration::from_secs(1));
    assert!(ended.borrow().iter().all(|&count| count == 1));
    bench.assert_clean();
}

//! Cells and the copier under load: never more than allowed, and everybody gets a turn.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{
    CellMode, Cells, Copier, CopyError, CopyJob, CopyPiece, Disk, ErrorKind, Flags, Io, IoError,
    Sector, SectorCount, SectorRange,
};
use cairn_sim::{DriveOptions, Fault, Image, OpSet, SimWorld};
use proptest::collection::vec;
use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq, proptest};

use crate::probe::range;

fn ranges() -> impl Strategy<Value = (SectorRange, bool)> {
    ((0u64..40, 1u64..10), any::<bool>())
        .prop_map(|((start, count), alone)| (range(start, count), alone))
}

type Holders = Rc<RefCell<Vec<(usize, SectorRange, CellMode)>>>;

fn conflict(holders: &Holders, range: SectorRange, mode: CellMode) -> bool {
    let alone = |other: CellMode| mode == CellMode::Exclusive || other == CellMode::Exclusive;
    holders.borrow().iter().any(|(_, held, other)| alone(*other) && held.overlaps(range))
}

fn source_bytes() -> Vec<u8> {
    (0..1024u64).flat_map(|sector| [sector as u8 ^ 0x5a; 512]).collect()
}

proptest! {
    #[test]
    fn conflicting_holders_never_meet_and_everybody_gets_in(
        wanted in vec(ranges(), 1..60),
        seed in any::<u64>(),
    ) {
        let world = SimWorld::new(seed, 3);
        let (cells, holders) = (Cells::default(), Holders::default());
        let (met, ended) = (Rc::new(RefCell::new(false)), Rc::new(RefCell::new(0)));
        for (number, &(range, alone)) in wanted.iter().enumerate() {
            let mode = if alone { CellMode::Exclusive } else { CellMode::Shared };
            let env = world.env((number % 3) as u16).clone();
            let (cells, holders) = (cells.clone(), holders.clone());
            let (met, ended) = (met.clone(), ended.clone());
            world.env((number % 3) as u16).spawn(async move {
                env.sleep(Duration::from_micros(env.random_below(50))).await;
                let guard = cells.hold(range, mode).await;
                *met.borrow_mut() |= conflict(&holders, range, mode);
                holders.borrow_mut().push((number, range, mode));
                env.sleep(Duration::from_micros(env.random_below(50))).await;
                holders.borrow_mut().retain(|(other, _, _)| *other != number);
                drop(guard);
                *ended.borrow_mut() += 1;
            });
        }
        let all = wanted.len();
        prop_assert!(world.try_run_until(|| *ended.borrow() == all).is_ok());
        prop_assert!(!*met.borrow());
        prop_assert!(cells.try_hold(range(0, 100), CellMode::Exclusive).is_some(), "all is free");
    }

    #[test]
    fn copies_are_right_and_stay_within_their_budget(
        jobs in vec(vec((0u64..900, 1u64..60), 1..5), 1..12),
        budget_kib in 4u64..40,
        seed in any::<u64>(),
    ) {
        let world = SimWorld::new(seed, 3);
        let bytes = source_bytes();
        let from = world.add_drive(DriveOptions::named("from"), Image::of_bytes(&bytes));
        let sectors = SectorCount(jobs.iter().flatten().map(|(_, count)| count).sum());
        let to = world.add_drive(DriveOptions::named("to"), Image::new(sectors));
        let copier = Arc::new(Copier::new(budget_kib * 1024));
        let ended = Rc::new(RefCell::new(0));
        let (mut start, mut expected) = (Sector(0), Vec::new());
        for (number, wanted) in jobs.iter().enumerate() {
            let ranges = wanted.iter().map(|&(start, count)| range(start, count));
            let pieces: Vec<_> =
                ranges.map(|range| CopyPiece { disk: from.clone(), range }).collect();
            let job = CopyJob { from: pieces, to: to.clone(), start, flags: Flags::empty() };
            for &(at, count) in wanted {
                expected.extend_from_slice(&bytes[at as usize * 512..][..count as usize * 512]);
                start += SectorCount(count);
            }
            let (copier, ended) = (copier.clone(), ended.clone());
            let env = world.env((number % 3) as u16);
            env.spawn({
                let env = env.clone();
                async move {
                    copier.copy(&env, &job).await.unwrap();
                    *ended.borrow_mut() += 1;
                }
            });
        }
        let most = RefCell::new(0);
        world.run_until(|| {
            let mut most = most.borrow_mut();
            *most = copier.used_bytes().max(*most);
            *ended.borrow() == jobs.len()
        });
        prop_assert!(*most.borrow() <= budget_kib * 1024);
        prop_assert_eq!(copier.used_bytes(), 0);
        prop_assert_eq!(to.visible().to_vec(), expected);
    }
}

#[test]
fn data_of_two_jobs_is_held_and_written_as_one_request() {
    let world = SimWorld::new(1, 1);
    let drive =
        |name, bytes: &[u8]| world.add_drive(DriveOptions::named(name), Image::of_bytes(bytes));
    let (from, to) = (drive("from", &source_bytes()), drive("to", &[0; 4 * 512]));
    let copier = Copier::new(4 * 512);
    let (source, target): (Arc<dyn Disk>, Arc<dyn Disk>) = (from.clone(), to.clone());
    let piece = |at| CopyPiece { disk: source.clone(), range: range(at, 2) };
    let (later, earlier) = (piece(40), piece(7));
    to.faults().add(Fault::error(OpSet::WRITES).on(range(0, 4)).shots(1));
    world.block_on(0, |env| async move {
        let later = copier.grant(1024).await.read(&env, &[later]).await.unwrap();
        let earlier = copier.grant(1024).await.read(&env, &[earlier]).await.unwrap();
        assert_eq!(copier.used_bytes(), 2048, "the data counts as long as it is held");
        let mut segs = earlier.segs().clone();
        segs.extend(later.segs(), 0, later.segs().bytes());
        let write = Io::write(range(0, 4), segs);
        assert!(env.io(&target, write.clone()).await.is_err(), "one request, one fault");
        env.io(&target, write).await.unwrap();
        drop((earlier, later));
        assert_eq!(copier.used_bytes(), 0);
    });
    let expected = [range(7, 2), range(40, 2)]
        .map(|at| source_bytes()[at.start.to_bytes() as usize..][..1024].to_vec());
    assert_eq!(to.visible().to_vec(), expected.concat());
}

#[test]
fn a_copy_says_which_side_failed_and_gives_its_budget_back() {
    let world = SimWorld::new(1, 1);
    let [from, to] = ["from", "to"]
        .map(|name| world.add_drive(DriveOptions::named(name), Image::of_bytes(&[1; 8 * 512])));
    let copier = Arc::new(Copier::new(4096));
    let copy = || {
        let (copier, source): (_, Arc<dyn Disk>) = (copier.clone(), from.clone());
        let pieces = vec![CopyPiece { disk: source, range: range(0, 8) }];
        let job = CopyJob { from: pieces, to: to.clone(), start: Sector(0), flags: Flags::FUA };
        world.block_on(0, |env| async move { copier.copy(&env, &job).await.map(drop) })
    };
    let planted = IoError::injected(ErrorKind::Io);
    to.faults().add(Fault::error(OpSet::WRITES).shots(1));
    assert_eq!(copy(), Err(CopyError::Write(planted)));
    from.faults().add(Fault::error(OpSet::READS).shots(1));
    assert_eq!(copy(), Err(CopyError::Read(planted)));
    assert_eq!(copier.used_bytes(), 0);
    assert_eq!(copy(), Ok(()));
    assert_eq!(to.durable().to_vec(), [1; 8 * 512], "FUA was passed on");
}

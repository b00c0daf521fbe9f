//! Splits: at lines, at what a target accepts, through nested stacks; and flushes to all lines.

use std::sync::Arc;

use cairn_block::{Disk, ErrorKind, Flags, Io, IoError, SectorCount, StreamId};
use cairn_sim::{Effect, Fault, History, OpSet, Workload};

use crate::probe::{Bench, SECTOR, pattern, range};

const THREE_LINES: &str = "0 16 probe a 100\n16 8 probe b 200\n24 100 probe c 300";

#[test]
fn a_request_is_split_at_the_lines_and_each_part_is_relative_to_its_own() {
    let bench = Bench::new(1);
    let volume = bench.volume("v", THREE_LINES);
    bench.write(&volume, range(10, 20), 7).unwrap();
    let mut seen: Vec<_> = bench.take_seen().iter().map(|seen| (seen.offset, seen.range)).collect();
    seen.sort_by_key(|(offset, _)| *offset);
    assert_eq!(seen, [(100, range(10, 6)), (200, range(0, 8)), (300, range(0, 6))]);
    assert_eq!(bench.read(&volume, range(10, 20)).unwrap(), pattern(range(10, 20), 7));
    let on_b = bench.drive("b").visible().to_vec();
    assert_eq!(on_b[200 * SECTOR..208 * SECTOR], pattern(range(16, 8), 7));
    bench.assert_clean();
}

#[test]
fn what_a_target_does_not_accept_comes_again_exactly_once() {
    let bench = Bench::new(2);
    let volume = bench.volume("v", "0 64 probe a 0 piece=3");
    bench.write(&volume, range(1, 11), 9).unwrap();
    let seen: Vec<_> = bench.take_seen().iter().map(|seen| seen.range).collect();
    assert_eq!(seen, [range(1, 3), range(4, 3), range(7, 3), range(10, 2)]);
    assert_eq!(bench.read(&volume, range(1, 11)).unwrap(), pattern(range(1, 11), 9));
    bench.assert_clean();
}

#[test]
fn every_part_of_a_request_has_its_hint_its_stream_and_its_start() {
    let bench = Bench::new(9);
    bench.volume("low", "0 64 probe a 0 piece=3 queue=1");
    let top = bench.volume("top", "0 16 probe @low 0\n16 48 probe @low 16");
    bench.world.run_for(std::time::Duration::from_secs(1));
    let (before, at, stream) = (bench.world.now(), range(10, 12), StreamId(7));
    let make = |env: &cairn_block::Env| {
        Io::write(at, env.segs(at.count)).with(Flags::BACKGROUND).in_stream(stream)
    };
    bench.io(&top, make).unwrap();
    let after = bench.world.now();
    let parts: Vec<_> =
        bench.take_seen().iter().map(|seen| (seen.flags, seen.stream, seen.started)).collect();
    let began = parts[0].2;
    assert_eq!(parts, [(Flags::BACKGROUND, stream, began); 6], "though they waited");
    assert!(before <= began && began < after);
    bench.read(&top, at).unwrap();
    let later = bench.take_seen();
    assert!(later.iter().all(|seen| seen.stream == StreamId::default() && seen.flags.is_empty()));
    assert!(later.iter().all(|seen| seen.started > began));
    bench.assert_clean();
}

#[test]
fn a_request_reaches_the_bottom_of_a_full_stack_and_no_further() {
    let bench = Bench::new(3);
    let mut below = "a".to_owned();
    for level in 1..=8 {
        bench.volume(&format!("v{level}"), &format!("0 64 probe {below} 1 piece={level}"));
        below = format!("@v{level}");
    }
    let top = bench.volume("alias", "0 32 probe a 500");
    let error = bench.load(&top, "0 64 probe @v8 0").unwrap_err().to_string();
    assert!(error.contains("deeper than 8"), "{error}");
    bench.assert_clean();
}

#[test]
fn a_parent_ends_with_its_last_part_and_the_first_error() {
    let bench = Bench::new(4);
    let volume = bench.volume("v", THREE_LINES);
    let delay = Effect::Delay(std::time::Duration::from_secs(1));
    bench.drive("c").faults().add(Fault { effect: delay, ..Fault::error(OpSet::WRITES) });
    let late = Effect::Error(ErrorKind::NoSpace);
    bench.drive("c").faults().add(Fault { effect: late, ..Fault::error(OpSet::WRITES) });
    bench.drive("b").faults().add(Fault::error(OpSet::WRITES));
    let began = bench.world.now();
    let result = bench.write(&volume, range(0, 40), 1);
    assert_eq!(result, Err(IoError::injected(ErrorKind::Io)), "b failed first");
    assert!(bench.world.now().since(began).as_secs() >= 1, "c had not ended before");
    let on_a = bench.drive("a").visible().to_vec();
    assert_eq!(on_a[100 * SECTOR..116 * SECTOR], pattern(range(0, 16), 1), "a did its part");
    bench.assert_clean();
}

#[test]
fn a_flush_reaches_every_line_as_often_as_its_target_wants() {
    let bench = Bench::new(5);
    let table = "0 16 probe a 100 copies=2\n16 8 probe b 200\n24 8 probe c 300 copies=0";
    let volume = bench.volume("v", table);
    bench.io(&volume, |_| Io::flush()).unwrap();
    let mut seen: Vec<_> = bench.take_seen().iter().map(|seen| (seen.offset, seen.copy)).collect();
    seen.sort_unstable();
    assert_eq!(seen, [(100, 0), (100, 1), (200, 0)]);
    bench.drive("b").faults().add(Fault::error(OpSet::FLUSHES).shots(1));
    let failed = bench.io(&volume, |_| Io::flush());
    assert_eq!(failed, Err(IoError::injected(ErrorKind::Io)));
    bench.assert_clean();
}

#[test]
fn a_flush_that_no_line_wants_succeeds() {
    let bench = Bench::new(6);
    let volume = bench.volume("v", "0 16 probe a 0 copies=0\n16 8 probe b 0 copies=0");
    bench.io(&volume, |_| Io::flush()).unwrap();
    assert_eq!(bench.take_seen(), []);
    bench.assert_clean();
}

#[test]
fn a_flush_through_nested_tables_covers_every_drive() {
    let bench = Bench::new(7);
    bench.volume("low", "0 16 probe a 0\n16 16 probe b 0");
    let top = bench.volume("top", "0 32 probe @low 0\n32 32 probe c 0 piece=5");
    bench.write(&top, range(0, 64), 3).unwrap();
    bench.io(&top, |_| Io::flush()).unwrap();
    for (drive, at) in [("a", range(0, 16)), ("b", range(16, 16)), ("c", range(32, 32))] {
        let durable = bench.drive(drive).durable().to_vec();
        assert_eq!(durable[..at.to_bytes() as usize], pattern(at, 3), "{drive}");
    }
    bench.assert_clean();
}

#[test]
fn random_requests_on_a_crooked_stack_read_what_was_written() {
    for seed in 0..30 {
        let bench = Bench::new(seed);
        bench
            .volume("x", "0 100 probe a 3 piece=7\n100 50 probe b 11\n150 150 probe a 400 queue=1");
        bench.volume("y", "0 64 probe c 5 hold=1\n64 200 probe @x 20 piece=13 requeue=1");
        let top =
            bench.volume("top", "0 33 probe b 500\n33 231 probe @y 17 piece=9 hold=1 queue=1");
        let disk: Arc<dyn Disk> = top.clone();
        let history = History::blank(seed, disk.sectors());
        let workload = Workload { max: SectorCount(64), ..Workload::mixed(seed, 150) };
        workload.run(&bench.world, &disk, &history).unwrap();
        history.verdict().unwrap_or_else(|wrong| panic!("seed {seed}: {wrong}"));
        bench.assert_clean();
    }
}

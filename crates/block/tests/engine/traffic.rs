//! What devices count: each request once, with its length, its result and its time.

use std::sync::Arc;
use std::time::Duration;

use cairn_block::{DeviceTraffic, Disk, Io, MappedDevice, Op, SuspendMode};
use cairn_sim::{Effect, Fault, OpSet};

use crate::probe::{Bench, range};

fn traffic(bench: &Bench, volume: &Arc<MappedDevice>) -> DeviceTraffic {
    let volume = volume.clone();
    let ask = |env| async move { MappedDevice::traffic(&env, &[volume]).await };
    bench.world.block_on(0, ask).remove(0)
}

/// Requests, sectors and failures of an operation, for each line.
fn of_lines(bench: &Bench, volume: &Arc<MappedDevice>, op: Op) -> Vec<(u64, u64, u64)> {
    let traffic = traffic(bench, volume);
    let lines = traffic.lines.iter().map(|line| line.traffic.of(op));
    lines.map(|of| (of.count(), of.sectors.0, of.failed)).collect()
}

/// Requests, sectors and failures of an operation.
fn counts(bench: &Bench, volume: &Arc<MappedDevice>, op: Op) -> (u64, u64, u64) {
    let traffic = traffic(bench, volume);
    let of = traffic.whole.of(op);
    (of.count(), of.sectors.0, of.failed)
}

#[test]
fn a_request_counts_once_at_each_device_however_many_parts_it_has() {
    let bench = Bench::new(1);
    let low = bench.volume("low", "0 64 probe a 0 piece=3");
    let top = bench.volume("top", "0 16 probe @low 0\n16 48 probe @low 16");
    bench.write(&top, range(10, 12), 7).unwrap();
    assert_eq!(counts(&bench, &top, Op::Write), (1, 12, 0));
    assert_eq!(counts(&bench, &low, Op::Write), (2, 12, 0), "one from each line");
    bench.read(&top, range(0, 4)).unwrap();
    bench.io(&top, |_| Io::flush()).unwrap();
    assert_eq!(counts(&bench, &top, Op::Read), (1, 4, 0));
    assert_eq!(counts(&bench, &top, Op::Flush), (1, 0, 0));
    assert_eq!(counts(&bench, &low, Op::Flush), (2, 0, 0), "one from each line");
    assert_eq!(counts(&bench, &top, Op::Discard), (0, 0, 0));
    bench.assert_clean();
}

#[test]
fn requests_that_a_straight_line_passes_on_count_as_well() {
    let bench = Bench::new(2);
    let low = bench.volume("low", "0 64 probe a 0 straight=1");
    let top = bench.volume("top", "0 32 probe @low 8 straight=1");
    bench.write(&top, range(0, 8), 7).unwrap();
    bench.drive("a").faults().add(Fault::error(OpSet::WRITES).shots(1));
    bench.write(&top, range(8, 8), 7).unwrap_err();
    for device in [&low, &top] {
        assert_eq!(counts(&bench, device, Op::Write), (2, 16, 1));
    }
    bench.assert_clean();
}

#[test]
fn a_failure_counts_once_though_several_parts_fail() {
    let bench = Bench::new(3);
    let volume = bench.volume("v", "0 16 probe a 0\n16 16 probe b 0");
    for drive in ["a", "b"] {
        bench.drive(drive).faults().add(Fault::error(OpSet::WRITES).shots(1));
    }
    bench.write(&volume, range(8, 16), 1).unwrap_err();
    assert_eq!(counts(&bench, &volume, Op::Write), (1, 16, 1));
    bench.assert_clean();
}

#[test]
fn each_line_counts_its_part_of_a_request() {
    let bench = Bench::new(6);
    let volume = bench.volume("v", "0 16 probe a 0 piece=3\n16 16 probe b 0");
    bench.write(&volume, range(10, 12), 7).unwrap();
    bench.io(&volume, |_| Io::flush()).unwrap();
    assert_eq!(of_lines(&bench, &volume, Op::Write), [(2, 6, 0), (1, 6, 0)], "pieces of 3");
    assert_eq!(of_lines(&bench, &volume, Op::Flush), [(1, 0, 0), (1, 0, 0)]);
    bench.drive("b").faults().add(Fault::error(OpSet::WRITES).shots(1));
    bench.write(&volume, range(15, 2), 1).unwrap_err();
    let failed = of_lines(&bench, &volume, Op::Write);
    assert_eq!(failed, [(3, 7, 0), (2, 7, 1)], "only the line that failed");
    bench.assert_clean();
}

#[test]
fn the_counts_of_a_line_stay_until_another_line_takes_its_place() {
    let bench = Bench::new(7);
    let volume = bench.volume("v", "0 32 probe a 0");
    let become_live = |table: &str| {
        bench.load(&volume, table).unwrap();
        bench.resume(&volume).unwrap();
    };
    let writes = || of_lines(&bench, &volume, Op::Write);
    bench.write(&volume, range(0, 4), 7).unwrap();
    assert_eq!(writes(), [(1, 4, 0)]);
    become_live("0 16 probe a 0\n16 16 probe b 0");
    bench.write(&volume, range(10, 12), 7).unwrap();
    assert_eq!(writes(), [(2, 10, 0), (1, 6, 0)]);
    become_live("0 8 probe a 0\n8 24 probe b 0");
    assert_eq!(writes(), [(2, 10, 0), (0, 0, 0)]);
    become_live("0 32 probe b 0");
    bench.write(&volume, range(0, 1), 7).unwrap();
    assert_eq!(writes(), [(3, 11, 0)], "not what other lines had");
    assert_eq!(counts(&bench, &volume, Op::Write), (3, 17, 0));
    bench.assert_clean();
}

#[test]
fn a_request_counts_with_the_time_from_its_start_to_its_end() {
    let bench = Bench::new(4);
    let volume = bench.volume("v", "0 64 probe a 0");
    let delay = Effect::Delay(Duration::from_secs(3));
    bench.drive("a").faults().add(Fault { effect: delay, ..Fault::error(OpSet::READS) }.shots(1));
    bench.read(&volume, range(0, 8)).unwrap();
    let traffic = traffic(&bench, &volume);
    let reads = traffic.whole.of(Op::Read);
    let took = Duration::from_nanos(reads.nanos);
    assert!(took >= Duration::from_secs(3) && took < Duration::from_secs(4), "{took:?}");
    let bound = reads.quantile(0.5).unwrap();
    assert!(bound >= took && bound <= 2 * took, "{bound:?}");
    bench.assert_clean();
}

#[test]
fn a_request_that_goes_back_to_the_gate_counts_when_it_ends() {
    let bench = Bench::new(5);
    let volume = bench.volume("v", "0 64 probe a 0 hoard=1");
    let write = bench.world.env(0).io(
        &(volume.clone() as Arc<dyn Disk>),
        Io::write(range(0, 8), bench.world.env(0).segs(range(0, 8).count)),
    );
    bench.suspend(&volume, SuspendMode::NoFlush);
    assert_eq!(counts(&bench, &volume, Op::Write), (0, 0, 0));
    bench.load(&volume, "0 64 probe b 0").unwrap();
    bench.resume(&volume).unwrap();
    bench.world.block_on(0, move |_| write).unwrap();
    assert_eq!(counts(&bench, &volume, Op::Write), (1, 8, 0));
    bench.assert_clean();
}

//! Volumes of which a part refuses writes.

use std::sync::Arc;

use cairn_block::{Disk, ErrorKind, Io, IoResult, MappedDevice, Op, SectorRange, read_only_parts};
use cairn_sim::DriveOptions;

use crate::probe::{Bench, pattern, range};

/// A bench with a drive `r` more, which refuses writes.
fn bench() -> Bench {
    let options = DriveOptions { read_only: true, ..DriveOptions::named("r") };
    Bench::with_drive(1, Some(options))
}

fn refused(result: IoResult) {
    assert_eq!(result.expect_err("it is read-only").kind, ErrorKind::ReadOnly);
}

#[test]
fn a_line_over_a_read_only_disk_refuses_writes_and_the_other_lines_take_them() {
    // A target that decides, one that has nothing to decide.
    for rules in ["piece=3", "straight=1"] {
        let bench = bench();
        let table = format!("0 16 probe a 8 {rules}\n16 100 probe r 0 {rules}\n116 9 probe b 0");
        let volume = bench.volume("v", &table);
        assert!(!volume.limits().read_only);
        bench.write(&volume, range(8, 8), 1).expect("the drive is well");
        bench.write(&volume, range(116, 9), 1).expect("the drive is well");
        assert_eq!(bench.read(&volume, range(8, 8)), Ok(pattern(range(8, 8), 1)));
        bench.take_seen();
        refused(bench.write(&volume, range(16, 1), 2));
        refused(bench.write(&volume, range(110, 6), 2));
        for op in [Op::WriteZeroes, Op::Discard] {
            refused(bench.io(&volume, |_| Io::on(op, range(20, 8))));
        }
        assert!(bench.take_seen().is_empty(), "{rules}: the target sees none of them");
        // Across the lines: the sectors of the others may be written.
        refused(bench.write(&volume, range(12, 8), 2));
        refused(bench.write(&volume, range(112, 8), 2));
        assert_eq!(bench.read(&volume, range(16, 100)), Ok(vec![0; 100 * 512]));
        bench.io(&volume, |_| Io::flush()).expect("the drives are well");
        bench.assert_clean();
    }
}

#[test]
fn a_volume_is_read_only_if_each_line_is() {
    let bench = bench();
    let lines = |text: &str| bench.volume(&text.replace([' ', '\n', '='], "-"), text);
    let whole = lines("0 16 probe r 0\n16 16 probe r 64 straight=1");
    assert!(whole.limits().read_only);
    refused(bench.write(&whole, range(0, 1), 1));
    assert!(!lines("0 16 probe r 0\n16 16 probe a 0").limits().read_only);
}

#[test]
fn parts_that_refuse_writes_are_found_through_the_volumes_beneath() {
    let bench = bench();
    let parts = |disk: &Arc<MappedDevice>, at: SectorRange| read_only_parts(disk.as_ref(), at);
    let low = bench.volume(
        "low",
        "0 16 probe a 0 straight=1\n16 32 probe r 0 straight=1\n48 8 probe r 100\n\
         56 8 probe a 16 straight=1\n64 8 probe r 200 straight=1",
    );
    let all = range(0, 72);
    assert_eq!(parts(&low, all), [range(16, 40), range(64, 8)]);
    assert_eq!(parts(&low, range(20, 20)), [range(20, 20)]);
    assert!(parts(&low, range(0, 16)).is_empty() && parts(&low, range(56, 8)).is_empty());
    // Parts of it, in another order; the second line has nothing that takes writes.
    let top = bench.volume("top", "0 20 probe @low 52 straight=1\n20 8 probe @low 20 straight=1");
    assert_eq!(parts(&top, range(0, 28)), [range(0, 4), range(12, 16)]);
    assert_eq!(parts(&top, range(2, 6)), [range(2, 2)]);
    let lines = top.live_table().expect("it serves");
    let lines: Vec<bool> = lines.lines().iter().map(|line| line.is_read_only()).collect();
    assert_eq!(lines, [false, true]);
    // A target that decides takes writes, whatever it does with them.
    let deciding = bench.volume("deciding", "0 72 probe @low 0");
    assert!(parts(&deciding, all).is_empty());
    bench.assert_clean();
}

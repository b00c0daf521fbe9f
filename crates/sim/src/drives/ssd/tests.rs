//! Flushes of a drive without an arm, and the end of each operation.

use super::super::testing::{arrival, conserve, finish};
use super::*;

const ALL: [SsdFigures; 5] = [
    SsdFigures::SATA,
    SsdFigures::SATA_PROTECTED,
    SsdFigures::NVME,
    SsdFigures::NVME_PROTECTED,
    SsdFigures::OPTANE,
];

#[test]
fn each_operation_ends_once_and_runs_repeat() {
    for figures in ALL {
        for seed in 0..20 {
            let run = || conserve(&mut Ssd::new(figures, seed), seed, |_| {});
            assert_eq!(run(), run());
        }
    }
}

#[test]
fn flush_is_quick_if_nothing_was_written_since_the_last() {
    let mut drive = Ssd::new(SsdFigures::NVME, 1);
    let mut took = |id, op, count| {
        let start = drive.meter.now();
        drive.arrive(start, arrival(id, op, 0, count));
        finish(&mut drive)[0].0.since(start)
    };
    assert_eq!(took(0, Op::Flush, 0), EMPTY_FLUSH);
    took(1, Op::Write, 8);
    assert_eq!(took(2, Op::Flush, 0), SsdFigures::NVME.flush);
    assert_eq!(took(3, Op::Flush, 0), EMPTY_FLUSH);
}

#[test]
fn flush_of_a_sata_drive_keeps_other_commands_out() {
    let ends = |figures| {
        let mut drive = Ssd::new(figures, 1);
        drive.arrive(Time(0), arrival(0, Op::Write, 0, 8));
        finish(&mut drive);
        let now = drive.meter.now();
        drive.arrive(now, arrival(1, Op::Flush, 0, 0));
        drive.arrive(now, arrival(2, Op::Read, 800, 8));
        finish(&mut drive).into_iter().map(|(_, id)| id).collect::<Vec<_>>()
    };
    assert_eq!(ends(SsdFigures::SATA), [1, 2]);
    assert_eq!(ends(SsdFigures::NVME), [2, 1]);
}

//! Traces that real programs wrote.
//!
//! - `fio-v3.log`: fio 3.33, `--rw=randrw --bs=4k --size=1m --number_ios=8 --fdatasync=2
//!   --thinktime=2ms --write_iolog=fio-v3.log`.
//! - `fio-v2.log`: written by hand after fio(1), since fio 3.33 writes version 3 only.
//! - `blkparse.txt`: the output of blkparse 1.2.0 for a binary trace that was made to have each
//!   kind of line: all actions of a write, flushes, FUA, discards, a remap, a message, a command of
//!   another kind, and the sums at the end.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::File;
use std::io::BufReader;
use std::path::Path;

use cairn_block::{Op, SectorCount, Time};
use cairn_lab::trace::Trace;
use cairn_lab::workload::Operation;

fn read(name: &str) -> Vec<Operation> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/traces").join(name);
    let input = BufReader::new(File::open(path).unwrap());
    Trace::new(name, input, SectorCount(1 << 20), None).map(Result::unwrap).collect()
}

fn at(micros: u64, op: Op, start: u64, count: u64) -> Operation {
    let operation = Operation::new(op, start, count);
    Operation { not_before: Time(micros * 1000), ..operation }
}

#[test]
fn iolog_of_version_3_is_read_with_its_moments() {
    let expected = [
        at(130, Op::Write, 120, 8),
        at(2188, Op::Write, 1512, 8),
        at(4236, Op::Flush, 0, 0),
        at(4564, Op::Write, 1720, 8),
        at(6587, Op::Read, 960, 8),
        at(8790, Op::Write, 816, 8),
        at(10_825, Op::Flush, 0, 0),
        at(14_602, Op::Write, 1728, 8),
        at(22_630, Op::Read, 776, 8),
        at(28_632, Op::Write, 720, 8),
    ];
    assert_eq!(read("fio-v3.log"), expected);
}

#[test]
fn iolog_of_version_2_is_read_with_its_waits() {
    let expected = [
        at(0, Op::Write, 120, 8),
        at(2000, Op::Read, 1512, 16),
        at(2000, Op::Flush, 0, 0),
        at(3500, Op::Flush, 0, 0),
        at(3500, Op::Discard, 128, 32),
    ];
    assert_eq!(read("fio-v2.log"), expected);
}

#[test]
fn queued_operations_of_blkparse_are_read_and_nothing_else() {
    let nanos = |nanos, operation| Operation { not_before: Time(nanos), ..operation };
    let fua = Operation { is_fua: true, ..Operation::new(Op::Write, 6144, 8) };
    let expected = [
        at(0, Op::Write, 2048, 8),
        nanos(99_500, Operation::new(Op::Read, 4096, 256)),
        at(199, Op::Flush, 0, 0),
        nanos(199_000, fua),
        at(299, Op::Flush, 0, 0),
        nanos(299_100, Operation::flush()),
        nanos(299_100, Operation::flush()),
        at(399, Op::Discard, 8192, 2048),
        nanos(399_100, Operation::new(Op::Discard, 8192, 2048)),
        at(499, Op::Write, 10_240, 8),
        nanos(499_001, Operation::new(Op::Read, 10_240, 8)),
        nanos(4_999_999_001, Operation::new(Op::Write, 12_288, 128)),
    ];
    assert_eq!(read("blkparse.txt"), expected);
}

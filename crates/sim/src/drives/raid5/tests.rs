//! Jobs of an array beside counts by hand and by row.

use super::super::ssd::{Ssd, SsdFigures};
use super::super::testing::{arrival, conserve, finish};
use super::*;

const CHUNK: u64 = 64;

fn array(members: u64) -> Raid5 {
    let figures = Raid5Figures { chunk: SectorCount(CHUNK), rows: 16 };
    let member = |seed| -> Box<dyn Timing> { Box::new(Ssd::new(SsdFigures::NVME, seed)) };
    Raid5::new(figures, (0..members).map(member).collect())
}

/// Sectors that the members read and write for writes that arrive together.
fn counted(members: u64, writes: &[(u64, u64)]) -> (u64, u64) {
    let mut array = array(members);
    for (id, &(start, count)) in (0..).zip(writes) {
        array.arrive(Time(0), arrival(id, Op::Write, start, count));
    }
    assert_eq!(finish(&mut array).len(), writes.len());
    let sums = array.members.iter().map(|member| member.timing.used());
    sums.fold((0, 0), |sum, used| (sum.0 + used.read_sectors, sum.1 + used.written_sectors))
}

#[test]
fn each_operation_ends_once_and_runs_repeat() {
    for seed in 0..40 {
        let run = || conserve(&mut array(4), seed, |_| {});
        assert_eq!(run(), run());
    }
}

#[test]
fn small_write_is_two_reads_and_two_writes() {
    assert_eq!(counted(4, &[(0, 8)]), (16, 16));
    assert_eq!(counted(9, &[(0, 8)]), (16, 16), "read-modify-write");
}

#[test]
fn cheaper_of_the_two_ways_is_taken_by_the_number_of_reads() {
    assert_eq!(counted(3, &[(0, 8)]), (8, 16), "the other data only");
    // Of 8 data members 3 are written: 4 old blocks or 5 others. With 4 it is 5 or 4.
    let first = |members: u64| (0..members).map(|chunk| (chunk * CHUNK, 8)).collect::<Vec<_>>();
    assert_eq!(counted(9, &first(3)), (32, 32));
    assert_eq!(counted(9, &first(4)), (32, 40));
}

#[test]
fn of_equal_numbers_of_reads_the_data_that_is_not_written_is_read() {
    assert_eq!(before(0b1, 3), Before::Rest, "2 reads each");
    assert_eq!(before(0b1, 4), Before::Old);
    assert_eq!(before(0b111, 3), Before::Nothing);
}

#[test]
fn rows_written_whole_read_nothing() {
    assert_eq!(counted(4, &[(0, 3 * CHUNK)]), (0, 4 * CHUNK));
    let parts: Vec<_> = (0..3).map(|chunk| (chunk * CHUNK, CHUNK)).collect();
    assert_eq!(counted(4, &parts), (0, 4 * CHUNK), "three writes that wait together");
}

/// By hand: rows 0 to 3 of the first member, rows 2 to 5 of the second. Rows 0, 1 and 4, 5 have one
/// member written (2 reads, 2 writes each), rows 2, 3 two (1 read, 3 writes).
#[test]
fn rows_gather_what_waits_together() {
    assert_eq!(counted(4, &[(0, 32), (CHUNK + 16, 32)]), (8 * (4 * 2 + 2), 8 * (4 * 2 + 2 * 3)));
}

#[test]
fn rows_are_counted_as_whole_or_in_part() {
    let rows_of = |writes: &[(u64, u64)]| {
        let mut array = array(4);
        for (id, &(start, count)) in (0..).zip(writes) {
            array.arrive(Time(0), arrival(id, Op::Write, start, count));
        }
        finish(&mut array);
        let used = array.used();
        (used.whole_rows, used.part_rows)
    };
    assert_eq!(rows_of(&[(0, 3 * CHUNK)]), (CHUNK / 8, 0));
    assert_eq!(rows_of(&[(0, 8), (CHUNK, 8)]), (0, 1), "two of three data members");
    // Rows 0 and 1 on all data members, rows 2 and 3 on the first alone.
    assert_eq!(rows_of(&[(0, 32), (CHUNK, 16), (2 * CHUNK, 16)]), (2, 2));
}

/// The rows that jobs write are those of the pieces, each once, on the members of the pieces.
#[test]
fn jobs_have_the_rows_and_members_of_a_count_by_row() {
    let mut rng = fastrand::Rng::with_seed(9);
    for _ in 0..500 {
        let piece = |request| {
            let first = rng.u64(..12);
            let rows = (first, first + rng.u64(1..5));
            Piece { request, chunk: rng.usize(..3), rows, is_fua: rng.u8(..8) == 0 }
        };
        let pieces: Vec<Piece> = (0..5).map(piece).collect();
        let jobs = jobs_of(7, &pieces);
        for row in 0..16 {
            let of = |rows: Rows| rows.0 <= row && row < rows.1;
            let wanted = pieces.iter().filter(|piece| of(piece.rows));
            let wanted = wanted.fold(0, |mask, piece| mask | 1_u64 << piece.chunk);
            let found: Vec<u64> =
                jobs.iter().filter(|job| of(job.rows)).map(|job| job.written).collect();
            let expected = if wanted == 0 { vec![] } else { vec![wanted] };
            assert_eq!(found, expected);
        }
        for piece in &pieces {
            let mut own = jobs.iter().filter(|job| overlap(job.rows, piece.rows));
            assert!(own.all(|job| job.requests.contains(&piece.request)));
        }
    }
}

#[test]
fn parity_moves_with_each_stripe_and_every_chunk_has_a_member() {
    let array = array(4);
    for stripe in 0..8 {
        let data = (0..3).map(|chunk| array.member(stripe, chunk));
        let mut members: Vec<usize> = data.chain([array.parity(stripe)]).collect();
        members.sort_unstable();
        assert_eq!(members, [0, 1, 2, 3]);
    }
    let moved: Vec<usize> = (0..5).map(|stripe| array.parity(stripe)).collect();
    assert_eq!(moved, [3, 2, 1, 0, 3]);
}

#[test]
fn read_goes_to_one_member_and_a_write_of_rows_under_way_waits() {
    let mut array = array(4);
    array.arrive(Time(0), arrival(0, Op::Read, 0, 8));
    assert_eq!(finish(&mut array).len(), 1);
    assert_eq!(array.used().operations, 1);
    let now = array.meter.now();
    let mut ended = Vec::new();
    array.arrive(now, arrival(1, Op::Write, 0, 8));
    array.go_on(now, &mut ended);
    array.arrive(now, arrival(2, Op::Write, 0, 8));
    array.go_on(now, &mut ended);
    assert_eq!(array.jobs.get(0).requests.len(), 1);
    assert_eq!(array.waiting.len(), 1);
    assert_eq!(finish(&mut array).len(), 2);
}

#[test]
fn array_tells_its_shape_and_its_best_sizes() {
    let array = array(5);
    let shape = Shape::Parity { chunk: SectorCount(CHUNK), data_members: 4 };
    assert_eq!(array.nature(), Nature { rotational: Some(false), volatile: true, shape });
    assert_eq!((array.limits().io_min, array.limits().io_opt), (32 << 10, 128 << 10));
}

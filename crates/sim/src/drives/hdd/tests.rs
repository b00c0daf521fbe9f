//! What the arm does first, streams that lose no turn, room in the cache, and times that add up.

use super::super::testing::{arrival, conserve, finish};
use cairn_block::Sector;

use super::*;

const SECTORS: SectorCount = SectorCount(1 << 31);

fn drive(figures: HddFigures) -> Hdd {
    Hdd::new(figures, SECTORS)
}

fn small_cache() -> HddFigures {
    HddFigures { cache: SectorCount(64), window: 4, queue: 4, ..HddFigures::NEARLINE }
}

/// D1, D2, D3. No write ends while a flush is under way, so that nothing at all may be dirty at its
/// end.
#[test]
fn each_operation_ends_once_and_a_flush_leaves_nothing_dirty() {
    let mut flushes = 0;
    for figures in [HddFigures::NEARLINE, small_cache()] {
        for seed in 0..60 {
            let mut run = || {
                conserve(&mut drive(figures), seed, |drive| {
                    assert_eq!(drive.dirty(), SectorCount::ZERO);
                    flushes += 1;
                })
            };
            let ends = run();
            assert_eq!(ends, run());
        }
    }
    assert!(flushes > 500, "{flushes} flushes were judged");
}

/// The choice of the arm is that of a scan with times computed the long way.
#[test]
fn arm_takes_what_it_can_begin_first() {
    let plain = HddFigures::NEARLINE;
    // Seeks of several turns.
    let slow =
        HddFigures { seek_knee: 4 * plain.seek_knee, seek_full: 5 * plain.seek_full, ..plain };
    let geometries = [plain, slow].map(|figures| Geometry::new(&figures, SECTORS.0));
    let turn = nanos(HddFigures::NEARLINE.revolution);
    let mut rng = fastrand::Rng::with_seed(2);
    for (round, geometry) in (0..2000).zip(geometries.iter().cycle()) {
        // Near each other, or anywhere.
        let width = if round % 4 < 2 { 60_000 } else { SECTORS.0 };
        let base = rng.u64(..SECTORS.0 - width + 1);
        let mut sector = || Sector(base + rng.u64(..width));
        let at = sector();
        let from = geometry.locate(Sector(at.0.max(1) - 1));
        let arm = Arm { cylinder: from.cylinder, head: from.head, at, since: Time(0) };
        let mut places = Places::default();
        let mut starts: Vec<Sector> = (0..32).map(|_| sector()).collect();
        starts.push(at);
        let now = Time(rng.u64(..1 << 40));
        let time = |start: Sector| {
            let to = geometry.locate(start);
            let seek = match from.cylinder.abs_diff(to.cylinder) {
                0 if from.head == to.head => nanos(HddFigures::NEARLINE.setup),
                0 => nanos(HddFigures::NEARLINE.head_switch),
                distance => u64::from(geometry.seek(distance)),
            };
            let under_arm = (now.0 + seek) % turn;
            seek + (u64::from(to.angle) + turn - under_arm) % turn
        };
        for (key, &start) in starts.iter().enumerate() {
            let position = geometry.locate(start);
            let approach = geometry.approach(&arm, now, start, position).total();
            let is_next = now == arm.since && start == at;
            assert!(is_next || u64::from(approach) == time(start), "{start:?}");
            places.insert(Candidate { position, start, order: key as u64, key });
        }
        let best = (0..starts.len()).min_by_key(|&key| (time(starts[key]), key));
        let nearest = places.nearest(geometry, &arm, now).map(|index| places.take(index).key);
        assert_eq!(nearest, best);
    }
}

#[test]
fn seek_takes_longer_over_a_longer_distance_and_meets_the_published_ends() {
    let figures = HddFigures::NEARLINE;
    for sectors in [1 << 33, 1 << 26] {
        let geometry = Geometry::new(&figures, sectors);
        let last = geometry.locate(Sector(sectors - 1)).cylinder;
        let times: Vec<u32> = (1..=last).map(|distance| geometry.seek(distance)).collect();
        assert!(times.is_sorted());
        assert_eq!(u64::from(times[0]), nanos(figures.seek_track));
        let full = f64::from(*times.last().unwrap()) / nanos(figures.seek_full) as f64;
        assert!((0.98..=1.0).contains(&full), "{full}");
    }
}

#[test]
fn stream_of_writes_loses_no_turn() {
    let figures = HddFigures { cache: SectorCount(4096), ..HddFigures::NEARLINE };
    let mut drive = drive(figures);
    for id in 0..200 {
        drive.arrive(Time(0), arrival(id, Op::Write, id * 256, 256));
    }
    finish(&mut drive);
    let (seconds, bytes) = (drive.meter.now().0 as f64 / 1e9, 200.0 * 256.0 * 512.0);
    let mb = bytes / seconds / 1e6;
    assert!((170.0..190.0).contains(&mb), "{mb} MB/s");
}

#[test]
fn stream_of_reads_one_at_a_time_loses_no_turn() {
    let mut drive = drive(HddFigures::NEARLINE);
    for id in 0..2000 {
        drive.arrive(drive.meter.now(), arrival(id, Op::Read, id * 256, 256));
        finish(&mut drive);
    }
    let mb = 2000.0 * 256.0 * 512.0 / (drive.meter.now().0 as f64 / 1e9) / 1e6;
    assert!((165.0..190.0).contains(&mb), "{mb} MB/s");
}

#[test]
fn reads_come_before_dirty_runs() {
    let mut drive = drive(HddFigures::NEARLINE);
    for id in 0..40 {
        drive.arrive(Time(0), arrival(id, Op::Write, id * 100_000, 8));
    }
    let mut ended = Vec::new();
    let late = Time(20_000_000);
    drive.go_on(late, &mut ended);
    assert_eq!(ended.len(), 40, "the cache has taken all");
    let before = drive.dirty();
    for id in 40..44 {
        drive.arrive(late, arrival(id, Op::Read, id * 1_000_000, 8));
    }
    let ends = loop {
        ended.clear();
        let now = drive.next().unwrap();
        drive.go_on(now, &mut ended);
        if ended.contains(&43) || ended.contains(&42) {
            break drive.dirty();
        }
    };
    // At most the run that was under the arm and the one taken while the reads were decoded.
    assert!(before.0 - ends.0 <= 16, "{before} and {ends}");
}

#[test]
fn write_waits_until_the_cache_has_room() {
    let mut drive = drive(small_cache());
    for id in 0..20 {
        drive.arrive(Time(0), arrival(id, Op::Write, id * 1_000_000, 8));
    }
    let mut ended = Vec::new();
    while ended.len() < 20 {
        let now = drive.next().unwrap();
        drive.go_on(now, &mut ended);
        assert!(drive.dirty() <= SectorCount(64) && drive.occupied <= 64);
    }
    assert!(drive.meter.now() > Time(20_000_000), "some waited for the arm");
    finish(&mut drive);
    assert_eq!(drive.occupied, 0);
}

#[test]
fn fua_write_ends_on_the_platter_and_a_cached_one_before() {
    let took = |is_fua| {
        let mut drive = drive(HddFigures::NEARLINE);
        drive.arrive(Time(0), Arrival { is_fua, ..arrival(0, Op::Write, 1 << 30, 8) });
        (finish(&mut drive)[0].0, drive.dirty())
    };
    let (cached, through) = (took(false).0, took(true).0);
    assert!(cached < Time(1_000_000), "{cached:?}");
    assert!(through > Time(5_000_000), "{through:?}");
}

#[test]
fn command_that_waits_too_long_is_next() {
    let patience = Duration::from_millis(50);
    let mut drive = drive(HddFigures { patience, ..HddFigures::NEARLINE });
    drive.arrive(Time(0), arrival(0, Op::Read, 1 << 30, 8));
    // Others near the arm, always some waiting.
    let (mut id, mut ended) = (1, Vec::new());
    while !ended.contains(&0) {
        ended.clear();
        while drive.meter.used.requests < id + 8 {
            let start = (id + drive.meter.used.requests) % 97 * 3360;
            let now = drive.meter.now();
            drive.arrive(now, arrival(drive.meter.used.requests, Op::Read, start, 8));
        }
        let now = drive.next().unwrap();
        drive.go_on(now, &mut ended);
        id += ended.len() as u64;
        assert!(now < Time(100_000_000), "it waits for ever");
    }
    assert!(drive.meter.now() > Time(50_000_000), "it is not the nearest");
}

#[test]
fn times_of_use_add_up_to_all_time() {
    let mut drive = drive(HddFigures::NEARLINE);
    conserve(&mut drive, 3, |_| {});
    let used = drive.used();
    let busy = used.seek_ns + used.rotation_ns + used.transfer_ns + used.other_ns;
    assert_eq!(busy + used.idle_ns, drive.meter.now().0);
    assert!(used.idle_ns < drive.meter.now().0 && used.depth_ns > 0);
}

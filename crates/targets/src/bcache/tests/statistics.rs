//! Tests of what requests count in the statistics.

use std::time::Duration;

use super::*;

fn get(test: &Fixture, name: &'static str) -> String {
    test.message("v", &["get", name]).expect("an attribute")
}

/// Hits, misses, those that bypass the cache, and what was bypassed, in total.
fn total(test: &Fixture) -> [String; 5] {
    [
        get(test, "stats_total/cache_hits"),
        get(test, "stats_total/cache_misses"),
        get(test, "stats_total/cache_bypass_hits"),
        get(test, "stats_total/cache_bypass_misses"),
        get(test, "stats_total/bypassed"),
    ]
}

#[test]
fn reads_count_once_as_hits_misses_or_bypasses() {
    let test = stopped();
    test.load("v", LINE);
    let read = |start, count| drop(test.read("v", start, count).expect("the drives are well"));
    let tick = || test.run(Duration::from_millis(13_700));
    // The cache has sectors 0 to 127, and 2048 to 2559.
    [0, 64, 120, 2048, 2100].into_iter().for_each(|start| read(start, 8));
    read(2048, 512);
    // Not at all, only its head, only its tail, only its middle.
    for (start, count) in [(1000, 8), (120, 16), (2040, 16), (2000, 1000)] {
        read(start, count);
    }
    assert_eq!(total(&test), ["0", "0", "0", "0", "0.0k"], "before the first tick");
    tick();
    assert_eq!(total(&test), ["6", "4", "0", "0", "0.0k"]);
    assert_eq!(get(&test, "stats_total/cache_hit_ratio"), "60");
    test.message("v", &["set", "sequential_cutoff", "512"]).expect("in its range");
    read(0, 8);
    read(2000, 1000);
    tick();
    assert_eq!(total(&test), ["6", "4", "1", "1", "504.0k"]);
    assert_eq!(get(&test, "stats_day/cache_bypass_hits"), "1");
    assert_eq!(get(&test, "stats_five_minute/cache_hits"), "5", "two decays of a 32nd part");
    test.run(Duration::from_secs(24 * 3600));
    let hits = ["five_minute", "hour", "day", "total"].map(|window| {
        let attributes = test.target("v").attributes();
        let name = format!("stats_{window}/cache_hits");
        let found = attributes.into_iter().find(|it| it.name == name).expect("an attribute");
        found.value.to_string()
    });
    assert_eq!(hits, ["0", "0", "2", "6"]);
}

#[test]
fn writes_count_what_bypasses_the_cache() {
    let test = stopped();
    test.load("v", LINE);
    drain(&test).expect("the drives are well");
    test.message("v", &["set", "writeback_running", "0"]).expect("in its range");
    let write = |start| test.write("v", start, 8, 7).expect("the drives are well");
    let mut expected = 0;
    for (mode, start, is_bypass) in [
        ("writeback", 4000, false),
        ("writethrough", 5000, false),
        ("writearound", 5100, true),
        ("none", 5200, true),
        ("none", 0, true),
        // Over dirty data.
        ("none", 4000, false),
    ] {
        test.message("v", &["set", "cache_mode", mode]).expect("a mode");
        write(start);
        test.run(Duration::from_millis(13_700));
        expected += u64::from(is_bypass) * 4;
        assert_eq!(get(&test, "stats_total/bypassed"), format!("{expected}.0k"), "{mode} {start}");
    }
}

#[test]
fn misses_whose_sectors_are_written_before_they_enter_are_collisions() {
    let test = stopped();
    test.load("v", LINE);
    test.message("v", &["set", "writeback_running", "0"]).expect("in its range");
    test.write("v", 12_000, 8, 7).expect("a session begins");
    for start in [9000, 9100] {
        test.start("v", "miss", |env| Io::read(range(start, 8), env.segs(SectorCount(8))));
    }
    test.write("v", 9000, 8, 8).expect("the drives are well");
    test.run(Duration::from_secs(14));
    assert_eq!(test.labels(), ["miss", "miss"]);
    assert_eq!(get(&test, "stats_total/cache_miss_collisions"), "1");
    assert_eq!(total(&test)[..2], ["0", "2"]);
    test.read("v", 9100, 8).expect("the drives are well");
    test.run(Duration::from_secs(14));
    assert_eq!(total(&test)[..2], ["1", "2"], "the other one entered the cache");
}

#[test]
fn statistics_go_on_after_a_suspend() {
    let test = stopped();
    test.load("v", LINE);
    for _ in 0..2 {
        test.read("v", 0, 8).expect("the drives are well");
        test.run(Duration::from_secs(14));
        test.suspend("v", SuspendMode::Flush);
        test.resume("v").expect("the drives are well");
    }
    assert_eq!(total(&test)[0], "2");
}

#[test]
fn priority_stats_say_what_the_buckets_hold() {
    let test = stopped();
    test.load("v", LINE);
    let text = get(&test, "priority_stats");
    let lines: Vec<_> = text.lines().map(|line| line.split_once(":\t").expect(line)).collect();
    let names: Vec<_> = lines.iter().map(|(name, _)| *name).collect();
    let expected =
        ["Unused", "Clean", "Dirty", "Metadata", "Average", "Sectors per Q", "Quantiles"];
    assert_eq!(names, expected);
    let percent = |at: usize| lines[at].1.trim().trim_end_matches('%').parse().expect("a number");
    let percents: [u64; 4] = [percent(0), percent(1), percent(2), percent(3)];
    let sum: u64 = percents.iter().sum();
    assert!((97..=100).contains(&sum) && percents[0] > 90, "{percents:?}");
    assert_eq!(lines[6].1.split(' ').count(), 31);
    test.message("v", &["set", "sequential_cutoff", "0"]).expect("in its range");
    (0..120).for_each(|at| test.write("v", at * 128, 128, 7).expect("the drives are well"));
    let after = get(&test, "priority_stats");
    let dirty = after.lines().nth(2).and_then(|line| line.rsplit_once('\t')).expect("a line").1;
    let dirty: u64 = dirty.trim_end_matches('%').parse().expect("a number");
    assert!(percents[2] < 5 && (6..30).contains(&dirty), "{text} {after}");
}

#[test]
fn what_is_written_to_the_cache_device_and_its_flushes_are_counted() {
    let test = stopped();
    test.load("v", LINE);
    let names = ["written", "btree_written", "metadata_written", "cache_flushes", "nbuckets"];
    let read = || {
        let attributes = test.target("v").attributes();
        names.map(|name| match attributes.iter().find(|it| it.name == name).expect(name).value {
            Value::Counter(number) | Value::Gauge(number) => number,
            ref other => panic!("{name}: {other:?}"),
        })
    };
    let before = read();
    test.write("v", 8192, 24, 7).expect("the drives are well");
    test.flush("v").expect("the drives are well");
    let [written, btree, metadata, flushes, buckets] = read();
    assert_eq!(written - before[0], 24);
    assert!(metadata > before[2] + btree - before[1] && flushes > before[3] && buckets > 0);
    drain(&test).expect("the drives are well");
    assert!(read()[1] > btree, "leaves follow");
    let of = |name| test.message("v", &["get", name]).expect("an attribute");
    assert_eq!(of("cache_replacement_policy"), "lru");
    assert!(of("active_journal_entries").parse::<u64>().expect("a number") >= 1);
}

//! Advice as a table, and what their sentences say.

use std::time::Duration;

use super::*;

const GIB: u64 = 1 << 30;

fn bare() -> Figures {
    Figures {
        label: "no cache".to_owned(),
        cache_bytes: None,
        is_writeback: false,
        is_whole: true,
        took: Duration::from_secs(100),
        operations: 1000,
        bytes: 4096 * 1000,
        mean_ns: 10e6,
        percentiles_ns: [Some(9_000_000), Some(20_000_000), Some(30_000_000)],
        hit_percent: None,
        backing_busy_percent: 50.0,
        backing_written: GIB,
        cache_written: None,
        years: None,
        dirty_bytes: 0,
        drained: None,
    }
}

/// A cache of so many GiB: seconds of the trace, milliseconds of an operation, years.
fn run(gib: u64, is_writeback: bool, seconds: u64, mean_ms: f64, years: f64) -> Figures {
    Figures {
        label: format!("{} of {gib}G", if is_writeback { "writeback" } else { "writethrough" }),
        cache_bytes: Some(gib * GIB),
        is_writeback,
        took: Duration::from_secs(seconds),
        mean_ns: mean_ms * 1e6,
        years: Some(years),
        drained: Some(Duration::from_secs(60)),
        ..bare()
    }
}

#[test]
fn advice_follows_the_rules() {
    use Measure::{Operation, Trace};
    let none = |index, of, times| Advice::None(Some((index, Gain { of, times })));
    let take =
        |index, of, times, wears_out| Advice::Take { index, gain: Gain { of, times }, wears_out };
    let unmoving = run(4, true, 100, 0.0, 9.0);
    let cases = [
        ("no runs", vec![], Advice::None(None)),
        ("A1: too little", vec![run(4, true, 90, 9.9, 9.0)], none(0, Trace, 100.0 / 90.0)),
        ("A1: not at all", vec![run(4, true, 200, 20.0, 9.0)], none(0, Trace, 0.5)),
        ("A1: just enough", vec![run(4, true, 80, 10.0, 9.0)], take(0, Trace, 1.25, false)),
        ("the operation", vec![run(4, true, 100, 2.0, 9.0)], take(0, Operation, 5.0, false)),
        ("no time at all is no gain", vec![unmoving], none(0, Trace, 1.0)),
        (
            "A2: another lasts",
            vec![run(4, true, 10, 2.0, 0.5), run(4, true, 50, 5.0, 3.0)],
            take(1, Trace, 2.0, false),
        ),
        (
            "A2: the other that lasts is not worth it",
            vec![run(4, true, 10, 2.0, 0.5), run(4, true, 95, 9.5, 3.0)],
            take(0, Trace, 10.0, true),
        ),
        (
            "A3: the smallest that is near",
            vec![run(8, true, 10, 2.0, 9.0), run(4, true, 11, 2.0, 9.0)],
            take(1, Trace, 100.0 / 11.0, false),
        ),
        (
            "A3: a smaller one is too far",
            vec![run(8, true, 10, 2.0, 9.0), run(4, true, 12, 2.0, 9.0)],
            take(0, Trace, 10.0, false),
        ),
        (
            "A3: of one size without dirty data",
            vec![run(4, true, 10, 2.0, 9.0), run(4, false, 11, 2.0, 9.0)],
            take(1, Trace, 100.0 / 11.0, false),
        ),
        (
            "A3: of one kind the better",
            vec![run(4, true, 11, 2.0, 9.0), run(4, true, 10, 2.0, 9.0)],
            take(1, Trace, 10.0, false),
        ),
    ];
    for (what, runs, expected) in cases {
        let found = judge(&bare(), &runs);
        assert!(is_near(found, expected), "{what}: {found:?}, expected {expected:?}");
    }
}

/// Gains are quotients.
fn is_near(found: Advice, expected: Advice) -> bool {
    let gains = |a: Gain, b: Gain| a.of == b.of && (a.times - b.times).abs() < 1e-9;
    match (found, expected) {
        (Advice::None(Some((a, one))), Advice::None(Some((b, other)))) => {
            a == b && gains(one, other)
        }
        (
            Advice::Take { index: a, gain: one, wears_out: wears },
            Advice::Take { index: b, gain: other, wears_out },
        ) => a == b && wears == wears_out && gains(one, other),
        _ => found == expected,
    }
}

#[test]
fn run_that_did_not_end_tells_by_what_it_did() {
    let half = Figures { is_whole: false, operations: 500, ..bare() };
    let runs = [Figures { mean_ns: 10e6, ..run(4, false, 50, 10.0, 9.0) }];
    let advice = judge(&half, &runs);
    let Advice::Take { gain, .. } = advice else { panic!("{advice:?}") };
    assert_eq!(gain, Gain { of: Measure::Trace, times: 4.0 });
    let asked = Asked { has_times: true, depth: 32, touched_bytes: GIB };
    let said = sentences(advice, &half, &runs, asked);
    assert!(said[0].contains("does more of the trace in the same time (4.00 times"), "{said:?}");
}

#[test]
fn advice_says_why_and_ends_with_what_is_not_known() {
    let asked = Asked { has_times: true, depth: 32, touched_bytes: 2 * GIB };
    let say = |runs: &[Figures]| sentences(judge(&bare(), runs), &bare(), runs, asked);

    let said = say(&[run(8, true, 20, 1.0, 9.0), run(4, true, 20, 1.1, 3.0)]);
    assert_eq!(said.len(), 5, "{said:?}");
    assert!(said[0].starts_with("Take writeback of 4G: it answers an operation in 1.10 ms"));
    assert!(said[1].contains("writeback of 8G, is 10.0 times faster"), "{}", said[1]);
    assert!(said[1].ends_with("the trace touches 2.15 GB, which it holds."), "{}", said[1]);
    assert!(said[2].contains("3.00 years of such days, less than the five"), "{}", said[2]);
    assert!(said[3].contains("took 60.0 s to go home."), "{}", said[3]);
    assert!(said[4].starts_with("Not known: the rest of your days, as the trace is short"));
    let long = Figures { operations: 20_000, took: Duration::from_secs(601), ..bare() };
    let said = sentences(Advice::None(None), &long, &[], asked);
    assert!(said[1].starts_with("Not known: operations start at the times of the trace"));

    let said = say(&[run(1, false, 10, 1.0, 0.1)]);
    assert_eq!(said.len(), 4, "{said:?}");
    assert!(said[1].contains("no dirty data to lose; no other is faster"), "{}", said[1]);
    assert!(said[1].ends_with("more than it holds."), "{}", said[1]);
    assert!(said[2].contains("no other that is worth it lasts a year"), "{}", said[2]);

    let said = say(&[run(4, true, 95, 9.5, 9.0)]);
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[0].starts_with("None of these caches is worth a drive"), "{}", said[0]);

    let undrained = Figures { drained: None, ..run(4, true, 10, 1.0, 9.0) };
    let said = say(&[undrained]);
    assert!(said[3].contains("did not go home within the time"), "{}", said[3]);
    let full = Asked { has_times: false, ..asked };
    let said = sentences(Advice::None(None), &bare(), &[], full);
    assert!(said[1].contains("32 operations are kept in flight"), "{said:?}");
}

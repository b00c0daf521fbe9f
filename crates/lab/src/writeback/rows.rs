//! [`ROWS`]: the experiments about the order of writeback, and what their reviewers saw.
//!
//! The files are those of `docs/evidence/writeback`. Each is run for blocks of 4 KiB, and again for
//! blocks of 64 KiB: the same text with another block.

use std::time::Duration;

/// An experiment.
pub struct Row {
    /// Its name, which is that of its file.
    pub name: &'static str,
    /// Its file.
    pub text: &'static str,
    /// What `--quick` makes of it.
    pub quick: Quick,
    /// What was seen elsewhere.
    pub observations: &'static [Observation],
}

/// How a row becomes quick.
#[derive(Clone, Copy)]
pub enum Quick {
    /// It has this scale.
    Scale(u64),
    /// It is not run.
    Left,
}

/// What a reviewer measured of a policy beside another.
pub struct Observation {
    /// In words.
    pub seen: &'static str,
    /// The policy.
    pub policy: &'static str,
    /// The other one.
    pub than: &'static str,
    /// When.
    pub when: When,
    /// How many times as fast: from, to.
    pub times: (f64, f64),
    /// Why the model shows something else, where that is known.
    pub because: &'static str,
}

/// A part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// Until nothing is dirty, or to the end of the run.
    Whole,
    /// From the beginning.
    First(Duration),
    /// Up to the end.
    After(Duration),
}

const fn minutes(count: u64) -> Duration {
    Duration::from_secs(60 * count)
}

macro_rules! text {
    ($name:literal) => {
        include_str!(concat!("../../../../docs/evidence/writeback/", $name, ".toml"))
    };
}

/// In the order of their names in the reviewers' mails.
pub const ROWS: [Row; 16] = [
    Row {
        name: "row-1.1",
        text: text!("row-1.1"),
        quick: Quick::Scale(1024),
        observations: &[
            Observation {
                seen: "strict order about 2x the order of completion",
                policy: "strict",
                than: "completion",
                when: When::Whole,
                times: (1.7, 2.4),
                because: HDD_CACHE,
            },
            Observation {
                seen: "deep batches about 1.7x strict order (12 to 20 MiB/s), when idle",
                policy: "sorted",
                than: "strict",
                when: When::Whole,
                times: (1.5, 1.9),
                because: NO_WAIT,
            },
        ],
    },
    Row {
        name: "row-1.2",
        text: text!("row-1.2"),
        quick: Quick::Scale(256),
        observations: &[Observation {
            seen: "no difference",
            policy: "strict",
            than: "completion",
            when: When::Whole,
            times: (0.95, 1.05),
            because: "",
        }],
    },
    Row {
        name: "row-1.3",
        text: text!("row-1.3"),
        quick: Quick::Scale(1024),
        observations: &[
            Observation {
                seen: "strict order slightly slower for 55 minutes",
                policy: "strict",
                than: "completion",
                when: When::First(minutes(55)),
                times: (0.85, 0.99),
                because: ROWS_OF_64,
            },
            Observation {
                seen: "strict order faster afterwards",
                policy: "strict",
                than: "completion",
                when: When::After(minutes(55)),
                times: (1.01, 1.5),
                because: ROWS_OF_64,
            },
        ],
    },
    Row {
        name: "raid5-dense",
        text: text!("raid5-dense"),
        quick: Quick::Scale(1024),
        observations: &[],
    },
    Row {
        name: "row-1.3b",
        text: text!("row-1.3b"),
        quick: Quick::Scale(512),
        observations: &[Observation {
            seen: "similar speeds",
            policy: "strict",
            than: "completion",
            when: When::Whole,
            times: (0.95, 1.05),
            because: "",
        }],
    },
    Row {
        name: "row-2.1",
        text: text!("row-2.1"),
        quick: Quick::Left,
        observations: &[Observation {
            seen: "no difference after 2 minutes",
            policy: "strict",
            than: "completion",
            when: When::After(minutes(2)),
            times: (0.95, 1.05),
            because: "",
        }],
    },
    Row {
        name: "row-3.1-first",
        text: text!("row-3.1-first"),
        quick: Quick::Left,
        observations: &[Observation {
            seen: "strict order slower for ten minutes",
            policy: "strict",
            than: "completion",
            when: When::First(minutes(10)),
            times: (0.5, 0.98),
            because: ONE_DISK,
        }],
    },
    Row {
        name: "row-3.1",
        text: text!("row-3.1"),
        quick: Quick::Scale(1024),
        observations: &[Observation {
            seen: "equal speeds after ten minutes",
            policy: "strict",
            than: "completion",
            when: When::After(minutes(10)),
            times: (0.95, 1.05),
            because: "",
        }],
    },
    Row {
        name: "out-of-order",
        text: text!("out-of-order"),
        quick: Quick::Scale(1024),
        observations: &[],
    },
    Row {
        name: "out-of-order-uncached",
        text: text!("out-of-order-uncached"),
        quick: Quick::Scale(1024),
        observations: &[Observation {
            seen: "strict order about 2x the order of completion (row 1.1)",
            policy: "strict",
            than: "completion",
            when: When::Whole,
            times: (1.4, 2.4),
            because: FEW_NEIGHBOURS,
        }],
    },
    Row { name: "uncached", text: text!("uncached"), quick: Quick::Scale(1024), observations: &[] },
    Row {
        name: "five-disks",
        text: text!("five-disks"),
        quick: Quick::Scale(512),
        observations: &[],
    },
    Row {
        name: "writecache-1.1",
        text: text!("writecache-1.1"),
        quick: Quick::Scale(1024),
        observations: &[],
    },
    Row {
        name: "writecache-1.3",
        text: text!("writecache-1.3"),
        quick: Quick::Scale(1024),
        observations: &[],
    },
    Row { name: "fragmented", text: text!("fragmented"), quick: Quick::Left, observations: &[] },
    Row { name: "front-end", text: text!("front-end"), quick: Quick::Left, observations: &[] },
];

const HDD_CACHE: &str = "the disk's cache takes a batch whole and the arm chooses among 96 runs, \
    so the order of 64 in flight is lost; out-of-order-uncached shows it";
const NO_WAIT: &str = "strict order never waits here: 64 reads of the cache are ahead of the disk";
const ROWS_OF_64: &str = "both orders bring the array 64 blocks at a time, and its rows gather the \
    same of them";
const ONE_DISK: &str =
    "one of the disks waits for the other in both orders; sweep has both at work";
const FEW_NEIGHBOURS: &str = "blocks of 64 KiB are long writes already";

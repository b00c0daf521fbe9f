//! A row for the tests of this folder: small, and not of the evidence.

use super::asked::{Asked, Checks};
use super::rows::{Quick, Row};
use super::versions::Version;
use crate::costs::Charge;

static SMALL: Row = Row {
    name: "small",
    text: r#"
title = "Dirty data of a small cache goes to one disk"
scale = 64
variants = ["completion", "strict", "sorted", "sweep"]
[drive.cache]
model = "nvme"
size = "64G"
[drive.disk]
model = "hdd"
size = "128G"
[fill]
cache = "cache"
backing = "disk"
dirty = 60
pattern = "uniform"
block = "64K"
[[volume]]
name = "disk0"
table = "0 N bcache disk cache 0"
messages = [
    "set writeback_policy {variant}",
    "set writeback_rate 2000000",
    "set writeback_rate_minimum 2000000",
    "set writeback_delay 0",
]
[end]
clean = "disk0"
at_most = "8h"
"#,
    quick: Quick::Left,
    observations: &[],
};

/// The row as it is run.
pub fn small() -> Version {
    Version { row: &SMALL, stem: SMALL.name.to_owned(), text: SMALL.text.to_owned() }
}

/// One seed, and no folder.
pub fn asked() -> Asked {
    Asked {
        rows: Vec::new(),
        quick: false,
        checks: Checks::default(),
        seeds: 1,
        out: None,
        charge: Charge::WHOLE,
        json: false,
    }
}

//! The program over files that fail: several NBD clients of each volume, verbs, and flushes,
//! writes and room of the files that fail. Then a stop, a kill or a power cut, and the judgement
//! of what the next server reads. `CAIRN_LIVES` (20) is how many lives each stack of targets has;
//! `CAIRN_LIFE=STACK:SEED` repeats one, as far as a real machine repeats anything.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod life;
#[path = "../program/place.rs"]
#[expect(dead_code, reason = "other tests ask for more")]
mod place;
mod stacks;
mod volume;

use cairn_testkit::FailingFiles;

use crate::life::Life;
use crate::stacks::{MERGE, PLAIN, SNAPSHOT, Stack, THIN, WRITECACHE};

fn lives(stack: &Stack) {
    let probe = tempfile::tempdir().unwrap();
    if let Err(error) = FailingFiles::mount(probe.path(), &[], 0) {
        return cairn_testkit::skip(&format!("FUSE: {error}"));
    }
    let lives = std::env::var("CAIRN_LIVES").map_or(20, |lives| lives.parse().unwrap());
    let only = std::env::var("CAIRN_LIFE").ok();
    let mut tally = life::Tally::default();
    for seed in 0..lives {
        let name = format!("{}:{seed}", stack.name);
        if only.as_ref().is_some_and(|only| *only != name) {
            continue;
        }
        let mut life = Life::new(stack, seed);
        if let Err(wrong) = life.run() {
            panic!("{wrong}\nrepeat it with CAIRN_LIFE={name}\n{}", life.log());
        }
        tally.add(life.tally());
    }
    println!("{}: {tally:?}", stack.name);
    if only.is_none() {
        tally.assert_all_met();
    }
}

#[test]
fn volumes_on_one_file_tell_each_client_of_each_loss() {
    lives(&PLAIN);
}

#[test]
fn a_write_cache_loses_nothing_that_it_does_not_tell() {
    lives(&WRITECACHE);
}

#[test]
fn a_snapshot_and_its_origin_lose_nothing_that_they_do_not_tell() {
    lives(&SNAPSHOT);
}

#[test]
fn a_merge_loses_nothing_that_it_does_not_tell() {
    lives(&MERGE);
}

#[test]
fn thin_volumes_lose_nothing_that_they_do_not_tell() {
    lives(&THIN);
}

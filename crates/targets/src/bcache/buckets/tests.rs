//! Which buckets are free, which generation each gets, and when a bucket is no longer taken (K1 to
//! K3).

use cairn_format::bcache::priorities::{METADATA, Record};
use cairn_format::bcache::{Age, Generation, Geometry, Key, Pointer, STALE_MAX};

use super::{Buckets, Choice};
use crate::bcache::work;

impl Buckets {
    /// Sectors of extents, and of dirty ones, of each bucket.
    pub fn counts(&self) -> Vec<(u32, u32)> {
        self.buckets.iter().map(|bucket| (bucket.live, bucket.dirty)).collect()
    }
}

/// Buckets 2 to 129 of 16 sectors, all of generation 5.
fn buckets() -> Buckets {
    let geometry = Geometry::new(1, 16, 130, 2).expect("legal");
    Buckets::new(geometry, &[Record { priority: 9, generation: Generation(5) }; 130])
}

fn key(bucket: u64, sectors: u64, generation: u8) -> Key {
    Key::new(0, 1000 + sectors, sectors).at(Pointer::new(bucket * 16, Generation(generation)))
}

fn freed(buckets: &mut Buckets) -> Vec<u64> {
    buckets.refill();
    std::iter::from_fn(|| buckets.take_for_metadata()).map(|taken| taken.sector() / 16).collect()
}

fn records(buckets: &mut Buckets) -> Vec<Record> {
    buckets.begin_records();
    let mut records = Vec::new();
    while !buckets.records(&mut records) {}
    records
}

fn clean(buckets: &Buckets, count: usize) -> Vec<u64> {
    let mut choice = Choice::new(count);
    while !buckets.choose_clean(&mut choice) {}
    choice.into_buckets()
}

#[test]
fn a_bucket_is_free_once_no_key_leads_to_it() {
    let mut buckets = buckets();
    (2..126).for_each(|bucket| buckets.mark_metadata(bucket));
    buckets.count(&key(126, 8, 5));
    buckets.count(&key(127, 8, 5).with_dirty(true));
    buckets.mark_seen(&key(128, 8, 4));
    assert_eq!(freed(&mut buckets), [128, 129], "a stale key keeps nothing");
    buckets.replace(&[key(127, 8, 5).with_dirty(true)], &[]);
    assert_eq!(freed(&mut buckets), [127]);
    buckets.replace(&[key(126, 8, 5)], &[]);
    assert_eq!(freed(&mut buckets), [126]);
    assert!(freed(&mut buckets).is_empty(), "each is taken once");
}

#[test]
fn marks_of_a_bucket_are_not_those_of_its_next_user() {
    let mut buckets = buckets();
    (2..129).for_each(|bucket| buckets.mark_metadata(bucket));
    buckets.count(&key(129, 8, 5));
    let marks = buckets.marks(&[129]);
    assert!(marks.have(&key(129, 8, 5)) && !marks.have(&key(128, 8, 5)));
    // It becomes free, and has other data.
    buckets.replace(&[key(129, 8, 5)], &[]);
    buckets.refill();
    let next = buckets.take_for_data().or_else(|| buckets.take_for_metadata());
    let next = Key::new(0, 1008, 8).at(next.expect("it is free"));
    assert!(next.cached_at().is_some_and(|pointer| pointer.sector() / 16 == 129));
    assert!(!marks.have(&next));
}

#[test]
fn a_bucket_is_not_free_while_an_extent_of_it_is_copied() {
    let mut buckets = buckets();
    let own = key(126, 8, 5).with_dirty(true);
    buckets.count(&own);
    assert!(buckets.begin_copy(&own), "it is there");
    buckets.replace(&[own], &[]);
    assert!(!freed(&mut buckets).contains(&126));
    buckets.end_copy(&own);
    assert!(clean(&buckets, 9).is_empty());
    buckets.refill();
    assert!(!buckets.begin_copy(&own), "it is free");
    assert_eq!(freed(&mut buckets), [126]);
    assert!(!buckets.begin_copy(&own), "it was reused");
}

#[test]
fn a_bucket_gets_the_generation_after_its_own() {
    let mut buckets = buckets();
    buckets.refill();
    let taken = buckets.take_for_metadata().expect("all are free");
    assert_eq!(taken.generation(), Generation(6));
    buckets.node_replaced(taken);
    assert!(buckets.is_stale(&Key::new(0, 0, 8).at(taken)));
    assert_eq!(std::iter::from_fn(|| buckets.take_for_metadata()).count(), 127);
    assert_eq!(buckets.free(), 0);
    buckets.refill();
    assert_eq!(buckets.take_for_metadata().map(Pointer::generation), Some(Generation(8)));
}

#[test]
fn a_bucket_with_a_pointer_that_is_too_old_is_not_taken() {
    let mut buckets = buckets();
    (2..128).for_each(|bucket| buckets.mark_metadata(bucket));
    let oldest = |age: u8| 5_u8.wrapping_sub(age);
    buckets.mark_seen(&key(128, 8, oldest(94)));
    buckets.mark_seen(&key(129, 8, oldest(95)));
    assert_eq!(freed(&mut buckets), [128]);
}

#[test]
fn a_bucket_that_nodes_use_in_turn_is_given_up_before_a_pointer_is_too_old() {
    let mut buckets = buckets();
    (3..130).for_each(|bucket| buckets.mark_metadata(bucket));
    let mut first = None;
    for _ in 0..200 {
        buckets.refill();
        let Some(taken) = buckets.take_for_metadata() else { break };
        first.get_or_insert(taken);
        buckets.node_replaced(taken);
    }
    let first = first.expect("it was free").generation();
    let now = records(&mut buckets)[2].generation;
    assert_eq!(now.age_of(first), Age::Stale(STALE_MAX - 1));
}

#[test]
fn clean_buckets_come_with_the_emptiest_first() {
    let mut buckets = buckets();
    buckets.count(&key(10, 9, 5));
    buckets.count(&key(11, 8, 5));
    buckets.count(&key(12, 8, 5).with_dirty(true));
    assert_eq!(clean(&buckets, 9), [11, 10]);
    buckets.replace(&[key(12, 8, 5).with_dirty(true)], &[key(12, 8, 5)]);
    assert_eq!(clean(&buckets, 9), [11, 12, 10]);
    assert_eq!(clean(&buckets, 2), [11, 12]);
}

#[test]
fn priorities_tell_the_generation_of_each_bucket_and_what_it_has() {
    let mut buckets = buckets();
    buckets.count(&key(10, 8, 5));
    assert!(!buckets.have_changed());
    buckets.refill();
    let taken = buckets.take_for_metadata().expect("most are free");
    let replaced = buckets.take_for_metadata().expect("most are free");
    buckets.node_replaced(replaced);
    assert!(buckets.have_changed());
    let records = records(&mut buckets);
    let of = |bucket: u64| (records[bucket as usize].priority, records[bucket as usize].generation);
    assert_eq!(of(10), (9, Generation(5)), "data");
    assert_eq!(of(taken.sector() / 16), (METADATA, Generation(6)));
    assert_eq!(of(replaced.sector() / 16), (0, Generation(7)), "nothing");
    assert!(!buckets.have_changed());
}

/// A million buckets of data, all clean, in a cache of 8 TiB.
fn many() -> Buckets {
    let geometry = Geometry::new(8, 16_384, 1 << 20, 2).expect("legal");
    let mut buckets = Buckets::new(geometry, &[]);
    let key = |bucket: u64| {
        let pointer = Pointer::new(bucket * 16_384, Generation(0));
        Key::new(0, (bucket + 1) * 64, 8 + bucket % 50).at(pointer)
    };
    geometry.usable().for_each(|bucket| buckets.count(&key(bucket)));
    buckets
}

#[test]
fn a_million_buckets_are_looked_at_in_pieces() {
    let mut buckets = many();
    work::most();
    let piece = |is_last: bool| {
        work::begin();
        !is_last
    };
    while piece(!buckets.refill()) {}
    let (mut next, mut least) = (0, None);
    while piece(buckets.least_used(&mut next, &mut least)) {}
    let least = least.expect("all have clean data");
    let mut choice = Choice::new(1 << 15);
    while piece(buckets.choose_victims(least, &mut choice)) {}
    let victims = choice.into_buckets();
    assert_eq!(victims.len(), 1 << 15);
    assert!(victims.iter().all(|at| at % 50 < 2), "those with the least data");
    let mut choice = Choice::new(64);
    while piece(buckets.choose_clean(&mut choice)) {}
    assert_eq!(choice.into_buckets().len(), 64);
    buckets.begin_records();
    let mut records = Vec::new();
    while piece(buckets.records(&mut records)) {}
    assert_eq!(records.len(), 1 << 20);
    // What is emptied at once is found in pieces, too.
    buckets.serve_clients();
    for bucket in &victims {
        let pointer = Pointer::new(bucket * 16_384, Generation(0));
        let key = Key::new(0, (bucket + 1) * 64, 8 + bucket % 50).at(pointer);
        buckets.replace(&[key], &[]);
    }
    while piece(!buckets.refill()) {}
    assert_eq!(buckets.free(), 0, "no checkpoint has ended");
    let number = buckets.begin_checkpoint();
    buckets.settle(number);
    while piece(!buckets.refill()) {}
    assert_eq!(buckets.free(), 1 << 15);
    assert!(work::most() <= work::piece(), "that is the bound of a piece");
}

#[test]
fn clock_of_uses_goes_on_once_for_each_1024th_part_of_the_cache() {
    let buckets = buckets();
    assert_eq!(buckets.tick(), 2, "of 2080 sectors");
    let first = buckets.clock();
    let mut requests = |sectors| {
        buckets.requested(sectors);
        buckets.clock() - first
    };
    assert_eq!([1, 1, 5, 1, 0].map(&mut requests), [0, 1, 3, 4, 4]);
}

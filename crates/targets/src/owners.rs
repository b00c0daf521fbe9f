//! Ownership of devices: the claims of each kind of target, next to others and through remappers.

use crate::fixture::{Fixture, image};
use cairn_block::SuspendMode;

const LINEAR: &str = "0 4096 linear";

/// Blank drives `a` to `f`, 4 MiB each.
fn fixture() -> Fixture {
    Fixture::new(["a", "b", "c", "d", "e", "f"].map(|name| (name, image(8192, |_| 0))))
}

fn refused(test: &Fixture, name: &str, table: &str, parts: &[&str]) {
    let line = test.refusal(name, table);
    assert!(parts.iter().all(|part| line.contains(part)), "{table}: {line}");
}

fn cache(origin: &str, cache: &str) -> String {
    format!("0 4096 writecache s {origin} {cache} 4096 0")
}

fn pool(metadata: &str, data: &str) -> String {
    format!("0 4096 thin-pool {metadata} {data} 128 0")
}

#[test]
fn two_caches_on_one_device_or_one_origin_are_refused_with_both_names() {
    let test = fixture();
    test.load("one", &cache("a", "b"));
    refused(&test, "two", &cache("c", "b"), &["b: ", "the cache device of volume 'one'"]);
    refused(&test, "two", &cache("a", "d"), &["a: ", "the cached origin of volume 'one'"]);
    // No cache is first formatted in front of another's device; one that exists meets its owner.
    refused(&test, "two", &cache("b", "d"), &["b: ", "the origin is itself a cache"]);
    test.load("three", &cache("c", "d"));
    test.remove("three");
    refused(&test, "two", &cache("b", "d"), &["b: ", "'one'"]);
    refused(&test, "two", "0 8 snapshot a e P 8", &["a: ", "'one'"]);
    test.suspend("one", SuspendMode::Flush);
    refused(&test, "two", &cache("c", "b"), &["'one'"]);
    test.remove("one");
    test.load("two", &cache("c", "b"));
}

#[test]
fn two_pools_on_one_data_device_are_refused_with_both_names() {
    let test = fixture();
    test.load("one", &pool("a", "b"));
    refused(&test, "two", &pool("c", "b"), &["b: ", "the data device of volume 'one'"]);
    refused(&test, "two", &pool("b", "c"), &["b: ", "the data device of volume 'one'"]);
    refused(&test, "two", &pool("a", "c"), &["a: ", "the metadata device of volume 'one'"]);
    test.load("two", &pool("c", "d"));
}

#[test]
fn a_refused_claim_leaves_the_old_table_live() {
    let test = fixture();
    test.load("one", &cache("a", "b"));
    test.load("two", "0 4096 linear c 0");
    test.write("two", 0, 8, 7).unwrap();
    refused(&test, "two", &cache("c", "b"), &["'one'"]);
    assert!(!test.volume("two").is_suspended());
    assert_eq!(test.bytes("two", 0, 8), [7; 8]);
    test.remove("one");
    test.resume("two").unwrap();
    assert_eq!(test.target("two").table(), "s c b 4096 0");
}

#[test]
fn a_pool_on_linear_volumes_owns_what_they_lead_to() {
    let test = fixture();
    test.load("meta", "0 1024 linear a 0");
    test.load("data", "0 4096 striped 2 128 b 0 c 0");
    test.load("pool", &pool("@meta", "@data"));
    // The rest of the disk is free, and the parts have nobody else above them.
    test.load("rest", "0 7168 linear a 1024");
    refused(&test, "x", "0 8 linear a 1023", &["a: ", "the metadata device of volume 'pool'"]);
    refused(&test, "x", "0 8 linear @data 0", &["@data: ", "'pool'"]);
    refused(&test, "x", "0 8 delay c 2047 0", &["c: ", "the data device of volume 'pool'"]);
    refused(&test, "x", "0 4096 flakey c 0 1 0", &["c: ", "'pool'"]);
    refused(&test, "x", "0 8 passthrough b 0", &["b: ", "'pool'"]);
    test.load("behind", "0 4096 linear c 2048");
    refused(&test, "x", &pool("d", "@data"), &["@data: ", "'pool'"]);
    refused(&test, "x", "0 8 linear @pool 0", &["@pool: ", "the data device of volume 'pool'"]);
    refused(&test, "x", &cache("@pool", "d"), &["@pool: ", "'pool'"]);
}

#[test]
fn a_range_with_a_writer_cannot_be_claimed() {
    let test = fixture();
    test.load("lower", &format!("{LINEAR} a 0"));
    refused(&test, "pool", &pool("b", "a"), &["a: volume 'lower' writes to it", "'@lower'"]);
    test.load("other", &format!("{LINEAR} @lower 0"));
    refused(&test, "pool", &pool("b", "@lower"), &["@lower: volume 'other' writes to it"]);
    test.suspend("other", SuspendMode::Flush);
    test.load("pool", &pool("b", "@lower"));
    let line = test.resume("other").unwrap_err().to_string();
    assert!(line.contains("'pool'"), "{line}");
    assert!(test.volume("other").is_suspended());
}

#[test]
fn a_volume_beneath_may_change_its_table_but_not_to_a_claimed_range() {
    let test = fixture();
    test.load("data", &format!("{LINEAR} a 0"));
    test.load("pool", &pool("b", "@data"));
    test.load("one", &cache("c", "d"));
    refused(&test, "data", &format!("{LINEAR} c 0"), &["c: ", "'one'"]);
    test.load("data", &format!("{LINEAR} e 0"));
    test.load("free", &format!("{LINEAR} a 0"));
    refused(&test, "x", &format!("{LINEAR} e 0"), &["e: ", "'pool'"]);
    test.remove("pool");
    test.load("x", &format!("{LINEAR} e 0"));
}

#[test]
fn disjoint_parts_of_one_disk_are_different_devices() {
    let test = fixture();
    for (name, start) in [("p0", 0), ("p1", 2048), ("p2", 4096), ("p3", 6144)] {
        test.load(name, &format!("0 2048 linear a {start}"));
    }
    test.load("pool", "0 2048 thin-pool @p0 @p1 128 0");
    test.load("cached", "0 2048 writecache s @p2 @p3 4096 0");
    refused(&test, "x", "0 2048 linear a 3000", &["a: ", "sectors 3000..4096"]);
}

#[test]
fn one_table_does_not_use_a_device_twice() {
    let test = fixture();
    test.load("m", "0 2048 linear a 0");
    test.load("d", "0 2048 linear a 2000");
    let parts = ["a: 'pool' would use it twice (sectors 2000..2048)", "metadata", "data"];
    refused(&test, "pool", "0 2048 thin-pool @m @d 128 0", &parts);
    let twice = format!("{}\n4096 4096 writecache s c b 4096 0", cache("a", "b"));
    refused(&test, "two", &twice, &["b: 'two' would use it twice"]);
}

#[test]
fn snapshots_their_origin_and_a_merge_share_the_origin_and_nobody_else_writes_it() {
    let test = fixture();
    test.load("base", &format!("{LINEAR} a 0"));
    test.load("origin", "0 4096 snapshot-origin @base");
    test.load("s1", "0 4096 snapshot @base b P 8");
    test.load("s2", "0 4096 snapshot @base c P 8");
    refused(&test, "x", &format!("{LINEAR} @base 0"), &["@base: ", "the snapshot origin"]);
    refused(&test, "x", &format!("{LINEAR} a 4095"), &["a: ", "the snapshot origin"]);
    refused(&test, "x", &format!("{LINEAR} b 0"), &["b: ", "the COW device of volume 's1'"]);
    refused(&test, "x", "0 4096 snapshot @base c P 8", &["c: ", "the COW device of volume 's2'"]);
    refused(&test, "x", "0 4096 snapshot a d P 8", &["a: volume 'base' writes to it"]);
    // As the kernel's users merge: the snapshot suspended, its store handed over.
    test.suspend("origin", SuspendMode::Flush);
    test.suspend("s2", SuspendMode::Flush);
    test.load("origin", "0 4096 snapshot-merge @base c P 8");
    assert!(test.resume("s2").is_err());
}

#[test]
fn a_snapshot_is_put_under_a_suspended_volume() {
    let test = fixture();
    test.load("base", &format!("{LINEAR} a 0"));
    test.suspend("base", SuspendMode::Flush);
    test.build("base", &format!("{LINEAR} a 0")).unwrap();
    test.load("real", &format!("{LINEAR} a 0"));
    test.load("snap", "0 4096 snapshot @real b P 8");
    assert!(test.resume("base").is_err(), "it would write past the snapshot");
    test.load("base", "0 4096 snapshot-origin @real");
}

#[test]
fn an_external_origin_is_shared_by_volumes_that_read_it_and_never_written() {
    let test = fixture();
    test.load("pool", &pool("a", "b"));
    for (name, id) in [("t0", "0"), ("t1", "1")] {
        let (pool, words) = (test.target("pool"), ["create_thin", id]);
        let made = test.sim.block_on(0, |env| async move { pool.message(&env, &words).await });
        made.unwrap();
        test.load(name, &format!("0 1024 thin @pool {id} c"));
    }
    refused(&test, "x", &format!("{LINEAR} c 0"), &["c: ", "the external origin of volume 't"]);
    refused(&test, "x", &cache("d", "c"), &["c: ", "the external origin"]);
    test.remove("t0");
    test.remove("t1");
    test.load("x", &format!("{LINEAR} c 0"));
}

//! `cairn-bench NAME --quick --json`: every benchmark runs, and its rows have the promised shape.
//! Their figures are not judged here.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

const PROGRAM: &str = env!("CARGO_BIN_EXE_cairn-bench");

fn bench(args: &[&str]) -> Output {
    Command::new(PROGRAM).args(args).stdin(Stdio::null()).output().unwrap()
}

fn rows(args: &[&str]) -> Vec<Value> {
    let output = bench(&[args, &["--quick", "--json", "--runs", "1"]].concat());
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// True if `cairn` is built: `cargo test -p cairn-bench` alone does not do that.
fn has_cairn() -> bool {
    let there = Path::new(PROGRAM).with_file_name("cairn").is_file();
    if !there {
        cairn_testkit::skip("needs the program: cargo build");
    }
    there
}

/// True if all these programs are on the path.
fn has_programs(programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there =
        |program: &&&str| std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    match programs.iter().find(|program| !is_there(program)) {
        None => true,
        Some(missing) => {
            cairn_testkit::skip(&format!("needs {missing}"));
            false
        }
    }
}

/// Holds rows to the shape, and answers those whose parameters include `wanted`.
fn shaped(rows: &[Value], wanted: &[(&str, &str)]) -> usize {
    for row in rows {
        assert!(row["name"].is_string() && row["unit"].is_string(), "{row}");
        assert!(row["parameters"].is_object() && row["noisy"].is_boolean(), "{row}");
        assert_eq!(row["runs"], 1, "{row}");
        for figure in ["value", "min", "max"] {
            assert!(row[figure].is_number(), "{row}");
        }
        let baseline = row["baseline"].as_f64();
        for figure in ["baseline_min", "baseline_max"] {
            assert_eq!(row[figure].is_number(), baseline.is_some(), "{row}");
        }
        // A peer may be done before the clock that counts its processor time has moved.
        let compared = baseline.is_some_and(|baseline| baseline > 0.0);
        assert_eq!(row["ratio"].is_number(), compared, "{row}");
    }
    let matches = |row: &&Value| {
        wanted.iter().all(|(key, value)| {
            let found = &row["parameters"][*key];
            found.as_str().map_or_else(|| found.to_string(), str::to_owned) == *value
        })
    };
    rows.iter().filter(matches).count()
}

#[test]
fn layers_tells_stacks_copies_and_cached_blocks() {
    let rows = rows(&["layers"]);
    assert!(rows.iter().all(|row| row["name"] == "layers"));
    for layers in ["1", "3", "6"] {
        for target in ["linear", "passthrough"] {
            let wanted = [("target", target), ("disk", "null"), ("op", "read"), ("layers", layers)];
            assert_eq!(shaped(&rows, &wanted), 2, "the figure and what the layers add");
        }
    }
    assert_eq!(shaped(&rows, &[("beside", "memcpy")]), 6);
    for cache in ["read_hit", "write_hit", "insert"] {
        assert!(shaped(&rows, &[("cache", cache), ("bytes", "4096")]) > 0, "{cache}");
    }
    assert_eq!(shaped(&rows, &[("style", "boxed_futures")]), 1);
}

#[test]
fn writecache_tells_every_state_and_counts_the_requests() {
    let rows = rows(&["writecache"]);
    for state in ["fresh", "churned", "turned", "checkerboard"] {
        for op in ["insert", "overwrite"] {
            let wanted = [("state", state), ("op", op), ("what", "requests_per_write")];
            assert_eq!(shaped(&rows, &wanted), 2, "{state} {op}");
        }
    }
    let fresh = |row: &&Value| {
        row["parameters"]["what"] == "requests_per_write" && row["parameters"]["state"] == "fresh"
    };
    for row in rows.iter().filter(fresh) {
        assert_eq!(row["value"], 1.0, "a fresh cache takes 512 KiB as one request: {row}");
    }
    assert_eq!(rows.iter().filter(|row| row["name"] == "larger").count(), 88);
}

#[test]
fn snapshot_tells_every_path_beside_the_raw_device_and_a_single_lock() {
    let rows = rows(&["snapshot"]);
    for disk in ["null", "memory"] {
        for store in ["P", "N"] {
            for (on, what, beside) in [
                ("origin", "copy_out", "raw"),
                ("origin", "write_again", "single_lock"),
                ("snapshot", "first_write", "single_lock"),
                ("snapshot", "read_through", "one_worker"),
            ] {
                let place = [("disk", disk), ("store", store), ("on", on), ("bytes", "4096")];
                let kind = [("what", what), ("beside", beside), ("workers", "2"), ("depth", "32")];
                assert_eq!(shaped(&rows, &[place, kind].concat()), 2, "{what} beside {beside}");
            }
        }
    }
    assert_eq!(shaped(&rows, &[("chunk", "65536"), ("what", "covers")]), 2);
    assert_eq!(shaped(&rows, &[("snapshots", "8"), ("memory", "held")]), 1);
}

#[test]
fn thin_tells_zeros_first_writes_lookups_snapshots_and_the_check() {
    if !has_cairn() {
        return;
    }
    let rows = rows(&["thin"]);
    assert!(rows.iter().all(|row| row["name"] == "thin"));
    for data in ["zeros", "random", "last_byte"] {
        for test in ["off", "ours", "byte_loop", "u64", "u128", "memcmp"] {
            let wanted = [("data", data), ("test", test), ("workers", "2"), ("beside", "raw")];
            assert_eq!(shaped(&rows, &wanted), 1, "{data} {test}");
        }
    }
    assert_eq!(shaped(&rows, &[("test", "ours"), ("beside", "plain read")]), 4);
    assert_eq!(shaped(&rows, &[("what", "beside"), ("beside", "off")]), 2);
    for what in ["first_write", "write_again", "copy", "covers", "read_through"] {
        let wanted = [("what", what), ("workers", "2"), ("beside", "one_worker")];
        assert!(shaped(&rows, &wanted) > 0, "{what}");
    }
    assert_eq!(shaped(&rows, &[("what", "lookup"), ("mappings", "10000")]), 1);
    assert_eq!(shaped(&rows, &[("what", "last snapshots"), ("snapshots", "200")]), 1);
    assert_eq!(shaped(&rows, &[("what", "check"), ("mappings", "10000")]), 1);
}

#[test]
fn recovery_tells_time_and_memory_by_the_entry() {
    let rows = rows(&["recovery"]);
    for order in ["sorted", "shuffled"] {
        assert_eq!(shaped(&rows, &[("order", order)]), 4);
        assert_eq!(shaped(&rows, &[("order", order), ("of", "processor")]), 1);
        assert_eq!(shaped(&rows, &[("order", order), ("memory", "peak")]), 1);
    }
}

#[test]
fn bcache_tells_building_opening_checking_and_memory_by_the_extent() {
    let rows = rows(&["bcache"]);
    assert!(rows.iter().all(|row| row["name"] == "bcache"));
    for (what, count) in [("build", 2), ("open", 3), ("check", 1)] {
        assert_eq!(shaped(&rows, &[("what", what), ("extents", "10000")]), count, "{what}");
    }
    assert_eq!(shaped(&rows, &[("what", "build"), ("memory", "peak")]), 1);
    assert_eq!(shaped(&rows, &[("what", "read hit"), ("extents", "10000")]), 4);
    assert_eq!(shaped(&rows, &[("what", "open"), ("memory", "held")]), 1);
    assert_eq!(shaped(&rows, &[("what", "full ring, more"), ("extents", "10000")]), 1);
    assert_eq!(shaped(&rows, &[("what", "open to drain"), ("keys", "30000")]), 3);
    assert_eq!(shaped(&rows, &[("what", "drain"), ("keys", "30000")]), 5);
    let few = [("what", "background writeback"), ("keys", "3000")];
    assert_eq!(shaped(&rows, &few), 1);
    for row in rows.iter().filter(|row| row["parameters"]["what"] == "background writeback") {
        assert!(row["value"].as_f64().unwrap() <= 8.0, "few batches: {row}");
    }
    let durable = |unit: &str| -> Vec<f64> {
        let is_durable = |row: &&Value| {
            row["parameters"]["what"] == "durable writes of 32 KiB" && row["unit"] == unit
        };
        rows.iter().filter(is_durable).map(|row| row["value"].as_f64().unwrap()).collect()
    };
    let entries = durable("entries/write");
    assert_eq!(entries.len(), 6);
    assert!(entries.iter().all(|entries| (0.2..1.2).contains(entries)), "{entries:?}");
    let flushes = durable("flushes");
    assert!(flushes.iter().all(|flushes| *flushes == 0.0), "of the backing device: {flushes:?}");
    let drained = |row: &&Value| row["parameters"]["what"] == "drain";
    let of = |unit: &str| rows.iter().filter(drained).find(|row| row["unit"] == unit).unwrap();
    let (writes, flushes) = (of("writes"), of("flushes"));
    assert_eq!(writes["value"], writes["baseline"], "what touches is one write: {writes}");
    let most = flushes["baseline"].as_f64().unwrap();
    assert!(flushes["value"].as_f64().unwrap() <= most, "one flush per full batch: {flushes}");
}

#[test]
fn bcache_requests_tells_writes_misses_workers_streams_and_bursts() {
    let rows = rows(&["bcache-requests"]);
    assert!(rows.iter().all(|row| row["name"] == "bcache"));
    for (disk, bytes) in [("memory", "4096"), ("memory", "524288"), ("null", "4096")] {
        for op in ["insert", "overwrite"] {
            let wanted = [("op", op), ("disk", disk), ("bytes", bytes)];
            assert_eq!(shaped(&rows, &wanted), 3, "what it costs, what is added, and the wall's");
        }
    }
    for (fills, count) in [("none", 4), ("all", 8)] {
        assert_eq!(shaped(&rows, &[("what", "read miss"), ("fills", fills)]), count, "{fills}");
    }
    let filled = |row: &&Value| row["parameters"]["filled"] == true;
    for row in rows.iter().filter(filled) {
        assert!(row["value"].as_f64().unwrap() > 90.0, "what was read enters the cache: {row}");
    }
    for (what, count) in [("memcpy", 2), ("read hit", 3), ("insert", 6)] {
        assert_eq!(shaped(&rows, &[("what", what), ("workers", "2")]), count, "{what}");
    }
    let stream = |row: &&Value| row["parameters"]["what"] == "hits beside a stream";
    assert_eq!(rows.iter().filter(stream).count(), 4);
    for row in rows.iter().filter(stream) {
        let (hits, enters) = (row["value"].as_f64().unwrap(), "read, cached");
        match row["parameters"]["stream"] == enters {
            false => assert!(hits > 95.0, "the stream bypasses the cache: {row}"),
            true => assert!(hits < 95.0, "the stream takes the cache: {row}"),
        }
    }
    // They say nothing with `--quick`.
    assert_eq!(shaped(&rows, &[("beside", "bursts that bypass")]), 0);
}

#[test]
fn sim_tells_each_drive_and_how_full_its_cache_is() {
    let rows = rows(&["sim"]);
    assert!(rows.iter().all(|row| row["name"] == "sim"));
    let of_keys = rows.iter().filter(|row| row["parameters"]["model"] == "experiment");
    assert!(of_keys.clone().all(|row| row["unit"] == "ns/key") && of_keys.count() == 1);
    assert_eq!(rows.iter().filter(|row| row["unit"] == "ns").count(), rows.len() - 1);
    for (model, op, count) in [
        ("seeded", "write", 1),
        ("seeded", "read", 1),
        ("hdd", "write", 2),
        ("hdd", "read", 1),
        ("nvme", "write", 1),
        ("raid5 of 4 hdd", "write", 1),
    ] {
        assert_eq!(shaped(&rows, &[("model", model), ("op", op), ("depth", "32")]), count);
    }
    assert_eq!(shaped(&rows, &[("model", "hdd"), ("full", "512")]), 1);
}

#[test]
fn costs_tells_each_price() {
    let rows = rows(&["costs"]);
    for what in ["turn", "poll", "request", "metadata"] {
        assert_eq!(shaped(&rows, &[("what", what)]), 1, "{what}");
    }
    assert_eq!(rows.len(), 4);
}

#[test]
fn nbd_tells_ours_whatever_peers_are_there() {
    if !has_cairn() {
        return;
    }
    let rows = rows(&["nbd"]);
    if rows.is_empty() {
        return cairn_testkit::skip("needs a fio with the nbd engine");
    }
    assert!(shaped(&rows, &[("server", "cairn_memory"), ("connections", "2")]) >= 3);
    assert!(shaped(&rows, &[("server", "cairn_writecache")]) >= 6);
}

#[test]
fn remote_tells_cached_blocks_of_a_server_beside_those_of_memory() {
    if !has_programs(&["nbdkit"]) {
        return;
    }
    let rows = rows(&["remote"]);
    for (cache, depth) in [
        ("write hit", "32"),
        ("read hit", "32"),
        ("write hit", "1"),
        ("read hit", "1"),
        ("write hit, flushed", "32"),
    ] {
        let wanted = [("cache", cache), ("depth", depth)];
        assert_eq!(shaped(&rows, &[&wanted[..], &[("origin", "memory")]].concat()), 2, "{cache}");
        let beside = [("origin", "nbd"), ("beside", "memory")];
        assert_eq!(shaped(&rows, &[wanted, beside].concat()), 2, "{cache}");
    }
}

#[cfg(feature = "objects")]
#[test]
fn images_tells_the_first_block_and_hydrated_reads() {
    if !has_programs(&["python3", "qemu-img"]) {
        return;
    }
    let web = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/web.py");
    let rows = rows(&["images", "--web", web]);
    let all = "open and first block";
    for device in ["image", "clone", "qcow2 image", "qcow2 file"] {
        let wanted = [("device", device), ("what", all), ("beside", "plain client")];
        assert_eq!(shaped(&rows, &wanted), usize::from(device != "qcow2 file"), "{device}");
        for what in ["open", "first block", "another block"] {
            assert_eq!(shaped(&rows, &[("device", device), ("what", what)]), 1, "{device} {what}");
        }
    }
    assert_eq!(shaped(&rows, &[("what", all), ("opens", "first")]), 1);
    for depth in ["32", "1"] {
        let wanted = [("what", "hydrated read"), ("depth", depth)];
        let beside = [("volume", "clone"), ("beside", "linear")];
        assert_eq!(shaped(&rows, &[wanted, beside].concat()), 2);
        assert_eq!(shaped(&rows, &[&wanted[..], &[("volume", "linear")]].concat()), 2);
        let wanted = [("what", "qcow2 read"), ("depth", depth), ("beside", "qemu-img")];
        assert_eq!(shaped(&rows, &wanted), 2);
    }
}

#[test]
fn images_is_left_out_without_its_web_server() {
    assert_eq!(rows(&["images", "--web", "no-such-script"]).len(), 0);
}

#[test]
fn rbd_is_left_out_unless_an_image_is_named() {
    assert_eq!(rows(&["rbd"]).len(), 0);
}

#[test]
fn upgrade_tells_how_long_clients_of_either_protocol_wait() {
    if !has_cairn() {
        return;
    }
    let rows = rows(&["upgrade"]);
    for (protocol, disk) in [
        ("nbd", "null"),
        ("nbd", "writecache"),
        ("vhost-user", "null"),
        ("vhost-user", "writecache"),
    ] {
        assert_eq!(
            shaped(&rows, &[("protocol", protocol), ("disk", disk)]),
            3,
            "{protocol} {disk}"
        );
    }
}

#[test]
fn the_kernel_is_left_out_where_there_is_none_to_run() {
    let rows = rows(&["writecache", "--kernel", "--uml", "no-such-script"]);
    assert!(shaped(&rows, &[("state", "fresh")]) > 0);
    assert_eq!(shaped(&rows, &[("beside", "kernel")]), 0);
}

#[test]
fn an_unknown_benchmark_is_refused_in_one_line() {
    let output = bench(&["nonsense"]);
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{line}");
    assert!(line.starts_with("cairn: ") && line.contains("'nonsense'"), "{line}");
    assert_eq!(line.lines().count(), 1, "{line}");
}

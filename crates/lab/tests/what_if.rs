//! `cairn-lab what-if`: a trace without a cache and with several, what is saved of it, and what is
//! refused.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("what-if-{name}"));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn lab(&self, words: &str) -> (i32, String, String) {
        let mut program = Command::new(env!("CARGO_BIN_EXE_cairn-lab"));
        let program = program.args(words.split_whitespace()).current_dir(&self.0);
        let output = program.stdin(Stdio::null()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.0.join(name), text).unwrap();
    }
}

/// Random writes of 4 KiB with a flush after each fourth, and reads of what was written before; an
/// operation each 3 ms, which is more than a disk can do.
fn trace() -> String {
    let mut rng = fastrand::Rng::with_seed(7);
    let mut text = "fio version 3 iolog\n0 /d add\n0 /d open\n".to_owned();
    let mut written = Vec::new();
    for step in 0..2000_u64 {
        let micros = step * 3000;
        let line = match step % 5 {
            4 => format!("{micros} /d sync 0 0\n"),
            3 => format!("{micros} /d read {} 4096\n", written[rng.usize(..written.len())]),
            _ => {
                let at = rng.u64(..(1 << 30) / 4096) * 4096;
                written.push(at);
                format!("{micros} /d write {at} 4096\n")
            }
        };
        text += &line;
    }
    text
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The rows of both tables, each setup's as one.
fn rows(lines: &[Value]) -> Vec<Value> {
    let of = |caption: &str| {
        let own = lines.iter().filter(|line| line["table"] == caption);
        own.map(|line| line["row"].clone()).collect::<Vec<Value>>()
    };
    let (mut rows, more) = (of("What the trace got"), of("What it took"));
    assert_eq!(rows.len(), more.len());
    for (row, more) in rows.iter_mut().zip(more) {
        assert_eq!(row["setup"], more["setup"]);
        row.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    }
    rows
}

fn number(row: &Value, field: &str) -> f64 {
    row[field].as_str().unwrap().parse().unwrap_or_else(|_| panic!("{field} of {row}"))
}

#[test]
fn trace_that_a_disk_cannot_follow_is_worth_a_cache() {
    let folder = Folder::new("worth");
    folder.write("t.log", &trace());
    let asked = "what-if --trace t.log --backing hdd:1T --cache optane:256M --json";
    let (code, first, said) = folder.lab(&format!("{asked} --out pages --save experiments"));
    assert_eq!(code, 0, "{said}");
    let all = lines(&first);
    let rows = rows(&all);
    let names: Vec<&str> = rows.iter().map(|row| row["setup"].as_str().unwrap()).collect();
    let kinds = ["writecache", "bcache writethrough", "bcache writeback sweep"];
    let sizes = ["256M", "128M", "64M"];
    let cached = sizes.map(|size| kinds.map(|kind| format!("{kind} on optane of {size}")));
    assert_eq!(names[0], "no cache");
    assert_eq!(names[1..], cached.concat());
    let (bare, writecache, writethrough, writeback) = (&rows[0], &rows[1], &rows[2], &rows[3]);
    // 1600 operations of 4 KiB and the flushes, at 3 ms each, end after 6 s.
    for row in [writecache, writeback] {
        assert!((5.99..6.1).contains(&number(row, "took, s")), "{row}");
        assert!(number(row, "mean, us") * 20.0 < number(bare, "mean, us"), "{row}\n{bare}");
        assert!(number(row, "hits, %") > 99.0, "all that is read was written: {row}");
        assert!(number(row, "to cache, MB") > 1200.0 * 4096.0 / 1e6, "{row}");
        assert!(number(row, "to backing, MB") > 0.9 * 1200.0 * 4096.0 / 1e6, "drained: {row}");
        assert!(number(row, "drain, s") > 0.5, "{row}");
        assert!(number(row, "dirty, MB") > 3.0, "{row}");
        assert!(number(row, "years") > 0.1, "{row}");
    }
    assert_eq!(bare["to cache, MB"], "-");
    assert_eq!(number(writethrough, "dirty, MB"), 0.0);
    assert!(number(writethrough, "mean, us") * 2.0 > number(bare, "mean, us"), "{writethrough}");
    let texts: Vec<&str> = all.iter().filter_map(|line| line["text"].as_str()).collect();
    assert!(texts[0].starts_with("Take ") && texts[0].contains("64M"), "{texts:?}");
    assert!(texts.iter().any(|text| text.starts_with("Not known: ")), "{texts:?}");
    let page = std::fs::read_to_string(folder.0.join("pages/what-if.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("Recommendation"));

    let (_, second, _) = folder.lab(asked);
    assert!(first == second, "two runs differ");
    // Q1: what is saved does the same by itself.
    let saved = "experiments/writeback-sweep-optane-256M.toml";
    let (code, alone, said) = folder.lab(&format!("run {saved} --json"));
    assert_eq!(code, 0, "{said}");
    let alone = lines(&alone);
    let clients = alone.iter().find(|line| line["table"] == "What clients got").unwrap();
    let p99 = number(&clients["row"], "p99, us");
    assert!((p99 - number(writeback, "p99, us")).abs() <= 0.6, "{clients}\n{writeback}");
}

#[test]
fn trace_without_times_is_replayed_with_so_many_in_flight() {
    let folder = Folder::new("full");
    let mut text = "fio version 2 iolog\n/d add\n/d open\n".to_owned();
    for step in 0..300 {
        text += &format!("/d read {} 4096\n", step * 7919 % 200_000 * 4096);
    }
    folder.write("t.log", &text);
    let asked = "what-if --trace t.log --backing hdd:1T --cache nvme:256M --depth 2 --json";
    let (code, out, said) = folder.lab(asked);
    assert_eq!(code, 0, "{said}");
    let all = lines(&out);
    let texts: Vec<&str> = all.iter().filter_map(|line| line["text"].as_str()).collect();
    assert!(texts[0].starts_with("None of these caches is worth a drive"), "{texts:?}");
    assert!(texts[1].contains("2 operations are kept in flight"), "{texts:?}");
    // A disk that reads 300 blocks one by one, from places all over a part of it.
    let took = number(&rows(&all)[0], "took, s");
    assert!((0.5..5.0).contains(&took), "{took}");
}

#[test]
fn what_cannot_be_compared_is_refused_in_one_line() {
    let folder = Folder::new("refused");
    let good = trace();
    folder.write("good.log", &good);
    folder.write("bad.log", &good.replacen("sync", "sink", 1));
    folder.write("none.log", "fio version 3 iolog\n0 /d add\n");
    let two = good.replacen("/d sync", "/e sync", 1);
    folder.write("two.log", &two);
    let cases = [
        ("bad.log", "hdd:1T", "nvme:1G", "", "bad.log: line 8: action: found \"sink\", expected"),
        ("good.log", "hdd:512M", "nvme:1G", "", "expected a range within the 1048576 sectors"),
        ("gone.log", "hdd:1T", "nvme:1G", "", "gone.log: read: there is no such file"),
        ("none.log", "hdd:1T", "nvme:1G", "", "none.log: operations: found none, expected one"),
        ("two.log", "hdd:1T", "nvme:1G", "", "two.log: line 8: device: found \"/e\" too"),
        ("good.log", "tape:1T", "nvme:1G", "", "--backing: model: found 'tape', expected hdd"),
        ("good.log", "hdd:1T", "nvme", "", "--cache: size: found 'nvme', expected MODEL:SIZE"),
        ("good.log", "hdd:1T", "nvme:128M", "", "--cache: size: found 'nvme:128M', expected 256M"),
        ("good.log", "hdd:1T", "nvme:64T", "", "MiB of memory, expected one that fits --memory"),
        ("good.log", "hdd:1T", "nvme:1G", "--memory 1M", "expected one that fits --memory, 1 MiB"),
        ("good.log", "hdd:1T", "nvme:1G", "--memory x", "--memory: size: found 'x', expected"),
        ("good.log", "hdd:1T", "nvme:1G", "--endurance 5", "--endurance: amount: found '5'"),
        ("good.log", "hdd:1T", "nvme:1G", "--policy best", "set writeback_policy best"),
        ("good.log", "hdd:1T", "nvme:1G", "--cache nvme:1G", "found nvme of 1G twice, expected"),
        ("good.log", "hdd:1T", "nvme:1G", "--device /e", "good.log: operations: found none"),
    ];
    for (trace, backing, cache, more, expected) in cases {
        let words = format!("what-if --trace {trace} --backing {backing} --cache {cache} {more}");
        let (code, out, said) = folder.lab(&words);
        assert!(code == 1 && out.is_empty(), "{words}: {code} {out}");
        assert!(said.contains(expected) && said.lines().count() == 1, "{words}: {said}");
    }
    let (code, _, said) = folder.lab("what-if --trace good.log --backing hdd");
    assert!(code == 1 && said.contains("--cache"), "{code} {said}");
}

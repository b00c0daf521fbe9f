//! `cairn-lab run`: an experiment repeats to the byte, its pages are written, and what has no
//! meaning is refused.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

/// Dirty data of a small cache goes home beside a client, by two policies.
const SMALL: &str = r#"
title = "A small cache"
variants = ["strict", "sweep"]
[drive.cache]
model = "nvme"
size = "128M"
[drive.one]
model = "hdd"
size = "1G"
[drive.two]
model = "hdd"
size = "1G"
[fill]
cache = "cache"
backing = "array"
dirty = 30
pattern = "clustered"
block = "4K"
[[volume]]
name = "array"
table = "0 N striped 2 128 one 0 two 0"
[[volume]]
name = "disk"
table = "0 N bcache array cache 0"
messages = ["set writeback_policy {variant}", "set writeback_percent 0"]
[[client]]
name = "reader"
volume = "disk"
order = "zipf-1.1"
block = "4K"
reads = 100
think = "about 20ms"
[end]
clean = "disk"
at_most = "1h"
"#;

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }

    fn lab(&self, experiment: &str, words: &[&str]) -> (i32, String, String) {
        let file = self.0.join("small.toml");
        std::fs::write(&file, experiment).unwrap();
        let mut program = Command::new(env!("CARGO_BIN_EXE_cairn-lab"));
        let program = program.arg("run").arg("small.toml").args(words).current_dir(&self.0);
        let output = program.stdin(Stdio::null()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    }
}

#[test]
fn experiment_repeats_to_the_byte_and_writes_its_page() {
    let folder = Folder::new("repeats");
    let (code, first, said) = folder.lab(SMALL, &["--seeds", "2", "--json", "--out", "pages"]);
    assert_eq!(code, 0, "{said}");
    let (_, second, _) = folder.lab(SMALL, &["--seeds", "2", "--json"]);
    assert!(first == second, "two runs differ");
    let page = std::fs::read_to_string(folder.0.join("pages/small.html")).unwrap();
    assert!(page.contains("<svg") && page.contains("A small cache"));
    let data = std::fs::read_to_string(folder.0.join("pages/small.json")).unwrap();
    assert!(data == first, "the file has what is printed");

    let lines: Vec<Value> = first.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let rows = |caption: &str| -> Vec<&Value> {
        let own = lines.iter().filter(|line| line["table"] == caption);
        own.map(|line| &line["row"]).collect()
    };
    let results = rows("What each variant did");
    assert_eq!(results.len(), 2, "{first}");
    for row in results {
        assert_eq!(row["ended"], "2 of 2", "{row}");
        assert_eq!(row["dirty at the end, GiB"].as_str().unwrap(), "0.0", "{row}");
    }
    assert_eq!(rows("What clients got").len(), 2);
    assert_eq!(rows("The time of the drives").len(), 6, "of two variants and three drives");
    let (_, unpriced, _) = folder.lab(SMALL, &["--seeds", "2", "--json", "--cpu", "0"]);
    assert!(first != unpriced, "the processor's time counts");
}

#[test]
fn what_has_no_meaning_is_refused_in_one_line() {
    let folder = Folder::new("refused");
    let cases = [
        ("0 N striped", "0 N stripped", "volume 'array'"),
        ("backing = \"array\"", "backing = \"arry\"", "arry: device: found none"),
        ("writeback_policy", "writeback_polices", "message: 'set writeback_polices strict'"),
        ("dirty = 30", "dirty = 101", "fill: dirty_percent: found 101"),
        ("\"nvme\"", "\"tape\"", "drive 'cache' model: found 'tape'"),
        ("size = \"128M\"", "size = \"4M\"", "fill: "),
        ("clean = \"disk\"", "clean = \"array\"", "end clean: found 'array', expected a volume"),
        (
            "block = \"4K\"\nreads",
            "block = \"2K\"\nreads",
            "block: found 2048, expected a multiple",
        ),
    ];
    for (good, bad, expected) in cases {
        assert!(SMALL.contains(good), "{good}");
        let (code, out, said) = folder.lab(&SMALL.replacen(good, bad, 1), &[]);
        assert!(code != 0 && out.is_empty(), "{bad}: {out}");
        assert!(said.contains(expected) && said.lines().count() == 1, "{bad}: {said}");
    }
}

#[test]
fn seeds_of_a_busy_processor_are_sampled_at_the_same_times() {
    let folder = Folder::new("busy");
    let busy = SMALL
        .replace("model = \"hdd\"", "model = \"optane\"")
        .replace("think = \"about 20ms\"", "think = \"20us\"")
        .replace("clean = \"disk\"\nat_most = \"1h\"", "at_most = \"3s\"");
    let (code, out, said) = folder.lab(&busy, &["--seeds", "3", "--cpu", "1000"]);
    assert_eq!(code, 0, "{said}");
    assert!(out.contains("3 of 3"), "{out}");
}

#[test]
fn clients_of_what_answers_at_once_let_time_pass() {
    let folder = Folder::new("at-once");
    let zeros = TRACED
        .replace("0 N linear one 0", "0 2048 zero")
        .replace("trace = \"fio.log\"", "order = \"random\"\nblock = \"4K\"\nreads = 100")
        .replace("sent = true\nat_most = \"1h\"", "at_most = \"1s\"");
    let (code, out, said) = folder.lab(&zeros, &[]);
    assert_eq!(code, 0, "{said}");
    assert!(out.contains("What clients got"), "{out}");
}

/// How long a run took: the last sample of a chart.
fn seconds(lines: &[Value]) -> f64 {
    let last = lines.iter().rfind(|line| line["chart"] == "Dirty data");
    last.unwrap()["x"].as_f64().unwrap()
}

/// A disk takes a batch into its cache at once, and writes it in a flush, for which reads wait.
#[test]
fn clients_that_read_a_disk_do_not_wait_for_a_flush_of_many_seconds() {
    let folder = Folder::new("beside");
    let disk = "[drive.one]\nmodel = \"hdd\"\nsize = \"64G\"\n";
    let (before, after) = SMALL.split_once("[drive.one]").unwrap();
    let (_, after) = after.split_once("[fill]").unwrap();
    let beside = format!("{before}{disk}[fill]{after}")
        .replace("[[volume]]\nname = \"array\"\ntable = \"0 N striped 2 128 one 0 two 0\"\n", "")
        .replace("array", "one")
        .replace("\"strict\", ", "")
        .replace("size = \"128M\"", "size = \"256M\"")
        .replace("clustered", "uniform")
        .replace("zipf-1.1", "random")
        .replace("clean = \"disk\"\nat_most = \"1h\"", "at_most = \"30s\"");
    let (code, out, said) = folder.lab(&beside, &["--json"]);
    assert_eq!(code, 0, "{said}");
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let got = lines.iter().find(|line| line["table"] == "What clients got").unwrap();
    let p99: f64 = got["row"]["p99, us"].as_str().unwrap().parse().unwrap();
    assert!(p99 < 1e6, "{got}");
    let done = lines.iter().find(|line| line["table"] == "What each variant did").unwrap();
    let operations: u64 = done["row"]["one: operations"].as_str().unwrap().parse().unwrap();
    assert!(operations > 5000, "{done}");
}

#[test]
fn rows_of_writeback_are_known_by_name_and_quick_ones_have_a_scale() {
    let lab = |words: &[&str]| {
        let mut program = Command::new(env!("CARGO_BIN_EXE_cairn-lab"));
        let output = program.arg("writeback").args(words).stdin(Stdio::null()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    let (code, out, said) = lab(&["row-9"]);
    assert!(code != 0 && out.is_empty() && said.lines().count() == 1, "{said}");
    assert!(said.contains("found 'row-9', expected row-1.1, row-1.2,"), "{said}");
    let (code, out, said) = lab(&["row-2.1", "--quick"]);
    assert!(code == 0 && out.contains("Policies side by side") && said.is_empty(), "{said}");
    for (word, expected) in [("--ranges", "over all models"), ("--check-scales", "a quarter of it")]
    {
        let (code, out, said) = lab(&["row-2.1", "--quick", word]);
        assert!(code == 0 && out.contains(expected) && said.is_empty(), "{out}{said}");
        let (_, out, _) = lab(&["row-2.1", "--quick", word, "--json"]);
        assert!(out.contains("row-2.1, as they have no quick scale"), "{out}");
    }
    let (code, _, said) = lab(&["--ranges", "--check-scales"]);
    assert!(code != 0 && said.contains("cannot be used with"), "{said}");
}

/// A disk, and what fio once asked of it.
const TRACED: &str = r#"
title = "A trace"
[drive.one]
model = "optane"
size = "1G"
[[volume]]
name = "disk"
table = "0 N linear one 0"
[[client]]
name = "fio"
volume = "disk"
trace = "fio.log"
[end]
sent = true
at_most = "1h"
"#;

#[test]
fn trace_is_sent_at_its_times_and_a_line_that_cannot_be_read_is_named() {
    let folder = Folder::new("traced");
    let log = folder.0.join("fio.log");
    let trace = std::fs::read_to_string("tests/traces/fio-v3.log").unwrap();
    std::fs::write(&log, &trace).unwrap();
    let (code, out, said) = folder.lab(TRACED, &["--json"]);
    assert_eq!(code, 0, "{said}");
    let operations = trace.lines().filter(|line| {
        let action = line.split(' ').nth(2).unwrap_or_default();
        ["read", "write", "datasync", "sync"].contains(&action)
    });
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let got = lines.iter().find(|line| line["table"] == "What clients got").unwrap();
    // In the last sample, a second after the beginning.
    assert_eq!(got["row"]["operations/s"], operations.count().to_string(), "{got}");
    let result = lines.iter().find(|line| line["table"] == "What each variant did").unwrap();
    assert_eq!(result["row"]["ended"], "1 of 1", "{result}");

    std::fs::write(&log, trace.replacen("write 774144 4096", "wrote 774144 4096", 1)).unwrap();
    let (code, out, said) = folder.lab(TRACED, &[]);
    assert!(code != 0 && out.is_empty(), "{out}");
    assert!(said.contains("fio.log") && said.contains("found") && said.contains("wrote"), "{said}");

    let beyond = TRACED.replace("size = \"1G\"", "size = \"4M\"");
    std::fs::write(&log, trace.replacen("write 774144 4096", "write 7741440 4096", 1)).unwrap();
    let (code, _, said) = folder.lab(&beyond, &[]);
    assert!(code != 0 && said.contains("fio.log"), "{said}");
    let scaled = TRACED.replace("title", "scale = 2\ntitle");
    let (code, _, said) = folder.lab(&scaled, &[]);
    assert!(code != 0 && said.contains("found a scale of 2, expected 1"), "{said}");
    std::fs::remove_file(&log).unwrap();
    let (code, _, said) = folder.lab(TRACED, &[]);
    assert!(code != 0 && said.contains("there is no such file"), "{said}");
}

#[test]
fn trace_at_full_pace_is_sent_in_whole_blocks_without_its_pauses() {
    let folder = Folder::new("pace");
    let log = "fio version 3 iolog\n0 /d add\n1 /d write 512 512\n900000 /d read 3584 1024\n\
               5000000 /d write 0 4096\n9000000 /d trim 512 512\n";
    std::fs::write(folder.0.join("fio.log"), log).unwrap();
    let figures = |pace: &str| {
        let text = TRACED.replace("\"fio.log\"", &format!("\"fio.log\"\npace = \"{pace}\""));
        let (code, out, said) = folder.lab(&text, &["--json"]);
        assert_eq!(code, 0, "{said}");
        let lines: Vec<Value> =
            out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let row = |caption: &str, field: &str| {
            let line = lines.iter().find(|line| line["table"] == caption).unwrap();
            line["row"][field].as_str().unwrap().parse::<f64>().unwrap()
        };
        let seconds = seconds(&lines);
        (seconds, row("What clients got", "operations/s") * seconds)
    };
    // The drive takes whole blocks only; the discard covers none.
    let (seconds, operations) = figures("full");
    assert!((0.9..1.1).contains(&seconds), "{seconds}");
    assert!((2.5..3.5).contains(&operations), "{operations}");
    let (seconds, _) = figures("trace");
    assert!((4.9..6.1).contains(&seconds), "{seconds}");
}

#[test]
fn drain_at_the_end_leaves_nothing_dirty_and_is_not_of_the_clients_time() {
    let folder = Folder::new("drain");
    let drained = SMALL
        .replace("writeback_percent 0", "writeback_percent 40")
        .replace("think = \"about 20ms\"", "think = \"20ms\"\nuntil = \"2s\"")
        .replace("clean = \"disk\"", "sent = true\ndrain = \"disk\"");
    let (code, out, said) = folder.lab(&drained, &["--json"]);
    assert_eq!(code, 0, "{said}");
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let row = |caption: &str| &lines.iter().find(|line| line["table"] == caption).unwrap()["row"];
    let number = |row: &Value, field: &str| row[field].as_str().unwrap().parse::<f64>().unwrap();
    let result = row("What each variant did");
    assert_eq!(result["ended"], "1 of 1", "{result}");
    assert_eq!(result["dirty at the end, GiB"], "0.0", "{result}");
    let seconds = seconds(&lines);
    assert!(seconds > 3.0, "30 % of 128 MiB take longer than the client: {seconds} s");
    // A read each 20 ms and the time of the reads themselves, in 2 or 3 samples' time.
    let rate = number(row("What clients got"), "operations/s");
    assert!((25.0..50.0).contains(&rate), "{rate}");
}

#[test]
fn phases_have_what_their_clients_did_and_by_how_much_numbers_rose() {
    let folder = Folder::new("phases");
    let phases = TRACED
        .replace("[[volume]]", "[drive.cache]\nmodel = \"optane\"\nsize = \"256M\"\n[[volume]]")
        .replace("0 N linear one 0", "0 N writecache s one cache 4096 0")
        .replace(
            "trace = \"fio.log\"",
            "order = \"sequential\"\nblock = \"4K\"\nthink = \"10ms\"\nuntil = \"4s\"",
        )
        .replace(
            "[end]\nsent = true\nat_most = \"1h\"",
            "[[client]]\nvolume = \"disk\"\norder = \"sequential\"\nblock = \"64K\"\n\
             think = \"20ms\"\nfrom = \"6s\"\n\
             [record]\ncounts = [\"writes_allocated\"]\n[end]\nat_most = \"10s\"",
        );
    let (code, out, said) = folder.lab(&phases, &["--json"]);
    assert_eq!(code, 0, "{said}");
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let rows = lines.iter().filter(|line| line["table"] == "Phases").map(|line| &line["row"]);
    let number = |row: &Value, field: &str| row[field].as_str().unwrap().parse::<f64>().unwrap();
    let rows: Vec<[f64; 3]> = rows
        .map(|row| {
            let fields = ["operations", "cache: writes per operation", "writes_allocated"];
            fields.map(|field| number(row, field))
        })
        .collect();
    let [first, pause, second] = rows[..] else { panic!("three phases: {rows:?}") };
    // A write each 10 ms, then none, then 16 blocks each 20 ms; the second writes them again.
    assert!((380.0..=400.0).contains(&first[0]) && first[2] == first[0], "{first:?}");
    assert!((1.0..1.5).contains(&first[1]), "a request each, and commits: {first:?}");
    assert_eq!([pause[0], pause[2]], [0.0, 0.0]);
    assert!((190.0..=200.0).contains(&second[0]), "{second:?}");
    assert!((1.0..1.5).contains(&second[1]), "neighbours in one request: {second:?}");
    let fresh = 16.0 * second[0] - first[0];
    assert!((second[2] - fresh).abs() <= 16.0, "{second:?}, {fresh}");

    // What is dirty is one run from the beginning, and the last block.
    let of = |table: &str| -> Vec<&Value> {
        lines.iter().filter(|line| line["table"] == table).map(|line| &line["row"]).collect()
    };
    let runs = of("Runs of dirty data in the caches, by their lengths up to");
    let [_, _, before_second, end] = runs[..] else { panic!("four moments: {runs:?}") };
    for moment in [before_second, end] {
        let counts = ["4 KiB", "64 KiB", "512 KiB", "more"].map(|field| number(moment, field));
        assert_eq!(counts, [1.0, 0.0, 0.0, 1.0], "{moment:?}");
    }
    let writes = of("Writes of the drives, by their lengths up to");
    let [first, _, _, _, second, _] = writes[..] else { panic!("of two drives: {writes:?}") };
    assert!(number(first, "4 KiB") >= 380.0 && number(first, "64 KiB") == 0.0, "{first:?}");
    assert!(number(second, "64 KiB") >= 190.0, "{second:?}");

    let unknown = phases.replace("writes_allocated", "writes_alloc");
    let (code, _, said) = folder.lab(&unknown, &[]);
    assert!(code == 1 && said.contains("record counts: found 'writes_alloc', expected"), "{said}");
}

#[test]
fn cache_that_is_filled_and_that_no_volume_uses_is_refused() {
    let folder = Folder::new("unused");
    let unused = TRACED.replace(
        "[[volume]]",
        "[drive.cache]\nmodel = \"nvme\"\nsize = \"1G\"\n[fill]\ncache = \"cache\"\n\
         backing = \"one\"\ndirty = 30\npattern = \"uniform\"\nblock = \"4K\"\n[[volume]]",
    );
    let (code, _, said) = folder.lab(&unused, &[]);
    assert!(code != 0 && said.contains("fill cache: found 'cache', which no volume"), "{said}");
}

/// A writecache whose dirty data goes home.
fn writecache_filled() -> String {
    SMALL
        .replace("[fill]", "[fill]\nkind = \"writecache\"")
        .replace(
            "bcache array cache 0",
            "writecache s array cache 4096 4 high_watermark {variant} low_watermark 0",
        )
        .replace("messages = [\"set writeback_policy {variant}\", \"set writeback_percent 0\"]", "")
        .replace("[\"strict\", \"sweep\"]", "[\"10\"]")
}

#[test]
fn filled_writecache_goes_home() {
    let folder = Folder::new("writecache");
    let filled = writecache_filled();
    let (code, out, said) = folder.lab(&filled, &["--json"]);
    assert_eq!(code, 0, "{said}");
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let row = &lines.iter().find(|line| line["table"] == "What each variant did").unwrap()["row"];
    assert_eq!(row["ended"], "1 of 1", "{row}");
    assert_eq!(row["dirty at the end, GiB"], "0.0", "{row}");
    let dirty: Vec<&Value> = lines.iter().filter(|line| line["chart"] == "Dirty data").collect();
    let first = dirty[0]["y"].as_f64().unwrap();
    assert!((30e6..45e6).contains(&first), "30 % of 128 MiB, less one second: {}", dirty[0]);

    let several = filled.replace("backing = \"array\"", "backing = [\"array\", \"array\"]");
    let (code, _, said) = folder.lab(&several, &[]);
    assert!(code == 1 && said.contains("fill: backing: found 2, expected one"), "{said}");
}

/// X2: what is judged here is what `serve` runs.
#[test]
fn lab_and_drives_have_no_target_of_their_own() {
    fn look(folder: &Path, found: &mut usize) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                look(&path, found);
            } else if path.extension().is_some_and(|end| end == "rs") {
                let text = std::fs::read_to_string(&path).unwrap();
                for word in ["Target for", "TargetType for", "-> Verdict", "Planner"] {
                    assert!(!text.contains(word), "{}: {word}", path.display());
                }
                *found += 1;
            }
        }
    }
    let mut found = 0;
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    look(&crates.join("lab/src"), &mut found);
    look(&crates.join("sim/src/drives"), &mut found);
    assert!(found > 30, "{found} files");
}

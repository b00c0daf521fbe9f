//! The experiments of `docs/evidence/dsync`: policies of flushes differ as they are meant to, and
//! servers have none of their words.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use cairn_lab::dsync::runs::{
    CLIENTS, DRAIN, SHAPES, Settings, TWO_DAYS, median, on_cache_alone, read, run, with_shape,
};
use cairn_lab::experiment::record::Record;
use cairn_sim::Prices;

const ONCE: Settings = Settings { quick: true, seeds: 1, prices: Prices::FREE };

fn bytes(records: &[Record]) -> f64 {
    median(records, |record| record.clients[0].written_bytes as f64)
}

#[test]
fn files_of_the_evidence_are_experiments_and_name_policies() {
    let words: Vec<&str> = cairn_targets::bcache::flush_policies().map(|(word, _)| word).collect();
    for file in CLIENTS.map(|(_, _, file)| file).into_iter().chain([DRAIN, TWO_DAYS]) {
        let experiment = read(file).unwrap();
        assert!(experiment.variants.iter().all(|word| words.contains(&word.as_str())), "{file:?}");
        assert!(experiment.variants.iter().any(|word| word == "ours"), "{file:?}");
    }
    for (clients, has_bursts, file) in CLIENTS {
        let kinds = read(file).unwrap().clients;
        assert_eq!((kinds[0].count, kinds.len() > 1), (clients, has_bursts), "{file:?}");
    }
}

#[test]
fn evidence_describes_each_policy() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/evidence/README.md");
    let text = std::fs::read_to_string(file).unwrap();
    for (word, _) in cairn_targets::bcache::flush_policies() {
        assert!(text.contains(&format!("\n| `{word}` | ")), "{word}");
    }
}

#[test]
fn flushes_that_are_forwarded_slow_down_the_clients_that_ask_for_them() {
    let mut experiment = read(CLIENTS[0].2).unwrap();
    experiment.end.at_most = Duration::from_secs(1);
    for (word, shape) in SHAPES {
        let experiment = with_shape(experiment.clone(), shape);
        let of = |policy| bytes(&run(&experiment, policy, &ONCE).unwrap());
        let (ours, forwarded) = (of("ours"), of("forwarded"));
        match word {
            "fua" => assert!(ours == forwarded, "no client asks for a flush"),
            _ => assert!(ours > 5.0 * forwarded, "{word}: {ours}, {forwarded}"),
        }
        let alone = bytes(&run(&on_cache_alone(experiment, 64), "alone", &ONCE).unwrap());
        assert!(alone > ours, "{word}: a key is written after its data");
    }
}

#[test]
fn policies_of_flushes_are_refused_by_servers() {
    for kind in cairn_targets::KINDS {
        assert!(kind.spec.option("flushes").is_none(), "{}", kind.spec.name);
    }
    let bcache = cairn_targets::lab_spec("bcache").unwrap();
    assert!(bcache.option("flushes").is_some());
}

#[test]
fn experiment_of_the_evidence_runs_from_its_file() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"));
    let file = file.join("../../docs/evidence/dsync/one-client-bursts.toml");
    let text = std::fs::read_to_string(file).unwrap().replace("\"10s\"", "\"1s\"");
    let file = Path::new(env!("CARGO_TARGET_TMPDIR")).join("one-client-bursts.toml");
    std::fs::write(&file, text).unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_cairn-lab"));
    let output = program.arg("run").arg(&file).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{said}");
    let out = String::from_utf8(output.stdout).unwrap();
    assert!(out.contains("ours: bursts") && out.contains("forwarded: database"), "{out}");
}

//! `cairn-lab drives`: the table, the objects and the exit code.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::process::{Command, Stdio};

use serde_json::Value;

fn lab(args: &[&str]) -> (i32, String) {
    let mut program = Command::new(env!("CARGO_BIN_EXE_cairn-lab"));
    let output = program.args(args).stdin(Stdio::null()).output().unwrap();
    (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
}

#[test]
fn drives_prints_a_line_or_an_object_per_row_and_succeeds() {
    let (code, text) = lab(&["drives"]);
    assert_eq!(code, 0, "{text}");
    let (code, json) = lab(&["drives", "--json"]);
    assert_eq!(code, 0, "{json}");
    let rows: Vec<Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(text.lines().count(), rows.len() + 1);
    for row in rows {
        assert_eq!(row["inside"], true, "{row}");
        let (low, high) = (row["published_min"].as_f64(), row["published_max"].as_f64());
        assert!(low.unwrap() <= high.unwrap() && row["value"].is_number(), "{row}");
    }
}

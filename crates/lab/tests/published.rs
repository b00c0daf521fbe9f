//! Pages of the evidence are made again from their seeds, and compared with those of the
//! repository to the byte: a part of them, for time. `CAIRN_BLESS=1` writes them instead.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;
use std::process::{Command, Stdio};

const VERBS: [&[&str]; 2] = [&["writeback", "--quick", "--seeds", "1", "row-1.2"], &["workers"]];

#[test]
fn pages_of_a_part_of_the_evidence_are_those_kept_here_to_the_byte() {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/evidence/quick");
    let made = std::env::temp_dir().join(format!("cairn-published-{}", std::process::id()));
    for verb in VERBS {
        let mut lab = Command::new(env!("CARGO_BIN_EXE_cairn-lab"));
        lab.args(verb).arg("--out").arg(&made).stdin(Stdio::null());
        let done = lab.output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
    if std::env::var_os("CAIRN_BLESS").is_some() {
        std::fs::create_dir_all(&kept).unwrap();
        for entry in std::fs::read_dir(&made).unwrap().flatten() {
            if entry.path().extension().is_some_and(|it| it == "html") {
                std::fs::copy(entry.path(), kept.join(entry.file_name())).unwrap();
            }
        }
    }
    let mut compared = 0;
    for entry in std::fs::read_dir(&kept).unwrap().flatten() {
        let [kept, made] = [entry.path(), made.join(entry.file_name())].map(std::fs::read);
        assert!(kept.unwrap() == made.unwrap(), "{}", entry.path().display());
        compared += 1;
    }
    assert!(compared >= 3, "{compared} pages");
    std::fs::remove_dir_all(&made).unwrap();
}

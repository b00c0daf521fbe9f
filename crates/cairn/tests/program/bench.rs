//! `cairn bench` and `cairn lab` become `cairn-bench` and `cairn-lab`, programs of their own, so
//! that `cairn` needs no simulator.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

/// A folder with `cairn` and an empty `bin`, which is all that PATH names. Nothing in it is written
/// and then run: a file that another test's child still has open for writing does not start.
fn alone() -> TempDir {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    fs::hard_link(env!("CARGO_BIN_EXE_cairn"), folder.path().join("cairn")).unwrap();
    fs::create_dir(folder.path().join("bin")).unwrap();
    folder
}

fn cairn(folder: &Path, args: &[&str]) -> (i32, String) {
    said(Command::new(folder.join("cairn")).args(args).env("PATH", folder.join("bin")))
}

fn said(command: &mut Command) -> (i32, String) {
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

#[test]
fn bench_passes_every_word_on() {
    let folder = alone();
    symlink("/bin/echo", folder.path().join("cairn-bench")).unwrap();
    let words = ["-v", "bench", "--help", "layers", "--runs", "2", "--", "-x"];
    let told = cairn(folder.path(), &words);
    assert_eq!(told, (0, "--verbose --help layers --runs 2 -- -x\n".to_owned()));
}

#[test]
fn bench_returns_the_exit_code_of_its_program() {
    let folder = alone();
    symlink("/bin/sh", folder.path().join("bin/cairn-bench")).unwrap();
    assert_eq!(cairn(folder.path(), &["bench", "-c", "exit 7"]), (7, String::new()));
}

#[test]
fn the_folder_of_cairn_is_searched_before_path() {
    let folder = alone();
    symlink("/bin/false", folder.path().join("bin/cairn-bench")).unwrap();
    symlink("/bin/true", folder.path().join("cairn-bench")).unwrap();
    assert_eq!(cairn(folder.path(), &["bench"]).0, 0);
}

#[test]
fn bench_without_its_program_names_what_to_build() {
    let (code, text) = cairn(alone().path(), &["bench", "layers"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.starts_with("cairn: cairn-bench: ") && text.lines().count() == 1, "{text}");
    assert!(text.contains("cargo build --release -p cairn-bench"), "{text}");
}

#[test]
fn lab_becomes_its_own_program_or_names_what_to_build() {
    let folder = alone();
    let (code, text) = cairn(folder.path(), &["lab", "drives"]);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("cargo build --release -p cairn-lab"), "{text}");
    symlink("/bin/echo", folder.path().join("cairn-lab")).unwrap();
    let told = cairn(folder.path(), &["lab", "drives", "--json"]);
    assert_eq!(told, (0, "drives --json\n".to_owned()));
}

#[test]
fn cairn_does_not_link_the_simulator() {
    let tree = |package: &str| {
        let mut cargo = Command::new(env!("CARGO"));
        cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
        cargo.args(["tree", "--locked", "--offline", "--edges", "normal", "--package", package]);
        let (code, text) = said(cargo.args(["--prefix", "none"]));
        assert_eq!(code, 0, "{text}");
        text
    };
    assert!(tree("cairn-bench").contains("cairn-sim "), "the name is spelled like this");
    let own = tree("cairn");
    assert!(own.contains("cairn-block ") && !own.contains("cairn-sim "), "{own}");
}

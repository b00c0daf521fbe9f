//! Part of `bench thin`: what tools do with the metadata of a pool, in a file: its check beside
//! thin_check, and what two volumes differ in beside thin_delta.
//!
//! Each is a process of its own, told in wall time from its start to its end. Our diff is asked of
//! a server, which is started for it and ends after it.

use std::process::{Command, Stdio};

use cairn_block::ConfigKind;
use cairn_outcome::failure::{Outcome, refused, system};
use cairn_outcome::program::sibling;

use super::clock::Moment;
use super::peers::{Folder, is_there};
use super::row::{Report, Row, Samples};
use super::sample::{Subject, interleave};
use super::settings::Settings;
use super::thinfixture::{BLOCK, NAME};

/// Most blocks in which two volumes differ.
const DIFFERING_MAX: u64 = 1000;

/// In how many blocks two volumes differ that have so many mappings.
pub fn differing(mappings: u64) -> u64 {
    DIFFERING_MAX.min(mappings / 10)
}

/// The metadata as a file, checked by this program and by thin_check.
///
/// # Errors
/// A checker cannot run, or finds something.
pub fn check(
    settings: &Settings,
    report: &mut Report,
    mappings: u64,
    metadata: &[u8],
) -> Outcome<()> {
    let folder = Folder::make()?;
    let path = stored(&folder, metadata)?;
    let ours = Tool::own(&["check", &path]);
    let theirs = Tool::new("thin_check", &["-q", &path]);
    let row = |value| Row::new(NAME, value, "s").with("what", "check").with("mappings", mappings);
    beside(settings, report, (ours, theirs), row)
}

/// What the volumes 0 and 1 of metadata with a snapshot differ in.
///
/// # Errors
/// A tool cannot run.
pub fn diff(
    settings: &Settings,
    report: &mut Report,
    mappings: u64,
    metadata: &[u8],
) -> Outcome<()> {
    let folder = Folder::make()?;
    let path = stored(&folder, metadata)?;
    let (len, control) = (mappings * BLOCK, folder.path("control").display().to_string());
    let pool = format!(
        "pool=0 {} thin-pool {path} null:{}M {BLOCK} 0",
        len * 2,
        (len * 2 * cairn_block::SECTOR_BYTES).div_ceil(1 << 20)
    );
    let volume = |name: &str, id: u32| format!("{name}=0 {len} thin @pool {id}");
    let ask = format!("'{}' thin diff --control '{control}' v0 v1", own());
    let words = ["serve", "--control", &control, "--table", &pool, "--export", "v0", "--table"];
    let words = [&words[..], &[&volume("v0", 0), "--table", &volume("v1", 1), "--run", &ask]];
    let ours = Tool::own(&words.concat());
    let theirs = Tool::new("thin_delta", &["--thin1", "0", "--thin2", "1", &path]);
    let row = |value| {
        let row = Row::new(NAME, value, "s").with("what", "diff").with("mappings", mappings);
        row.with("differing", differing(mappings))
    };
    beside(settings, report, (ours, theirs), row)
}

/// Puts metadata into a file, and names it.
fn stored(folder: &Folder, metadata: &[u8]) -> Outcome<String> {
    let path = folder.path("metadata").display().to_string();
    std::fs::write(&path, metadata).map_err(|error| system(&path, "write", error))?;
    Ok(path)
}

/// Where it is.
fn own() -> String {
    sibling("cairn").display().to_string()
}

/// Runs ours and theirs in turns, if theirs is there, and tells a row of it.
fn beside(
    settings: &Settings,
    report: &mut Report,
    (ours, theirs): (Tool, Tool),
    row: impl Fn(Samples) -> Row,
) -> Outcome<()> {
    let mut subjects: Vec<Subject<'_, f64>> = vec![Box::new(|| ours.seconds())];
    match is_there(&theirs.program) {
        true => subjects.push(Box::new(|| theirs.seconds())),
        false => report.note(format!("thin: {} is not installed: told alone", theirs.program)),
    }
    let taken = interleave(settings.runs, subjects)?;
    let row = row(Samples(taken[0].clone()));
    report.push(match taken.get(1) {
        Some(times) => row.with("beside", theirs.program.as_str()).against(&Samples(times.clone())),
        None => row,
    });
    Ok(())
}

/// A program and its words.
struct Tool {
    program: String,
    words: Vec<String>,
}

impl Tool {
    fn new(program: &str, words: &[&str]) -> Tool {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        Tool { program: program.to_owned(), words }
    }

    /// The program that is measured.
    fn own(words: &[&str]) -> Tool {
        Tool::new(&own(), words)
    }

    /// How long it takes; it must succeed.
    fn seconds(&self) -> Outcome<f64> {
        let mut command = Command::new(&self.program);
        command.args(&self.words).stdin(Stdio::null()).stdout(Stdio::null());
        let began = Moment::now();
        let output = command.output().map_err(|error| system(&self.program, "run", error))?;
        let took = began.elapsed().wall.as_secs_f64();
        if output.status.success() {
            return Ok(took);
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().replace('\n', "; ");
        let found = format!("{} and '{said}'", output.status);
        Err(refused(ConfigKind::System, &self.program, "exit status", found, "success"))
    }
}

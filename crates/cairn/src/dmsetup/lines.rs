//! Table lines between dmsetup, which names devices by path or number, and a server, which names
//! its volumes by `@NAME` and everything else by path.

use std::path::Path;

use cairn_block::{TableLine, escape_word, unescape_word};
use cairn_control::arguments::is_path;
use cairn_control::devices::{places, with_absolute_paths};
use cairn_control::report::ReportLine;
use cairn_outcome::failure::Outcome;

use super::device::{self, Numbers};
use super::nodes::{MAPPER, Nodes};

/// A table for the server. A line that cannot be parsed stays as it is: the server says what is
/// wrong with it.
///
/// # Errors
/// It names a number that no device has.
pub fn to_server(nodes: &Nodes<'_>, volumes: &[String], table: &str) -> Outcome<String> {
    let line = |text: &str| {
        let Ok(mut line) = TableLine::parse(text) else { return Ok(text.to_owned()) };
        for at in places(&line) {
            let word = unescape_word(&line.args[at]);
            line.args[at] = match nodes.volume_at(&word, volumes) {
                Some(volume) => format!("@{volume}"),
                None => match device::numbers_of(&word) {
                    Some(numbers) => escape_word(&device::path_of(numbers)?),
                    None => continue,
                },
            };
        }
        Ok(line.to_string())
    };
    let lines: Outcome<Vec<String>> = table.lines().map(line).collect();
    with_absolute_paths(&lines?.join("\n"))
}

/// The volumes beneath a table.
pub fn volumes_in(table: &str) -> Vec<String> {
    let lines = table.lines().filter_map(|text| TableLine::parse(text).ok());
    let names = lines.flat_map(|line| {
        let words = places(&line).into_iter().map(|at| line.args[at].clone()).collect::<Vec<_>>();
        words.into_iter().filter_map(|word| word.strip_prefix('@').map(str::to_owned))
    });
    names.collect()
}

/// A device that a table names.
pub struct Lower {
    /// Its place among the words of the line.
    at: usize,
    /// Its numbers; none for a file, and for a volume without a device.
    pub numbers: Option<Numbers>,
    /// Its path, or that of the node that a volume has or would have.
    pub path: String,
}

/// The devices of a line. Relative paths begin in the server's folder.
pub fn lowers(nodes: &Nodes<'_>, folder: &Path, line: &TableLine) -> Vec<Lower> {
    let lower = |at: usize| {
        let word = unescape_word(&line.args[at]);
        if let Some(volume) = word.strip_prefix('@') {
            let path = format!("{MAPPER}{volume}");
            return Lower { at, numbers: nodes.numbers_of(volume), path };
        }
        let path = folder.join(&word);
        let numbers = is_path(&word).then(|| device::numbers_at(&path)).flatten();
        Lower { at, numbers, path: if is_path(&word) { path.display().to_string() } else { word } }
    };
    places(line).into_iter().map(lower).collect()
}

/// A line as dmsetup prints it: devices by number, files by path.
pub fn printed(nodes: &Nodes<'_>, folder: &Path, line: &ReportLine) -> String {
    let text = line.to_string();
    let Ok(mut line) = TableLine::parse(&text) else { return text };
    for lower in lowers(nodes, folder, &line) {
        line.args[lower.at] = match lower.numbers {
            Some((major, minor)) => format!("{major}:{minor}"),
            None => escape_word(&lower.path),
        };
    }
    line.to_string()
}

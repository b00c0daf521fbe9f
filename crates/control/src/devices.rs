//! The devices that the lines of a table name, in its text.

use std::path::Path;

use cairn_block::{TableLine, unescape_word};
use cairn_outcome::failure::Outcome;

use crate::arguments::{absolute, path_in};

/// Where devices stand among the words of a line.
pub fn places(line: &TableLine) -> Vec<usize> {
    let Some(spec) = cairn_targets::spec(&line.target) else { return Vec::new() };
    let (words, _) = spec.split(line.args.iter().map(String::as_str));
    let is_device = |at: &usize| {
        let (arg, word) = &words.fixed[*at];
        arg.names_device(word)
    };
    (0..words.fixed.len()).filter(is_device).collect()
}

/// The devices that a line names, in its order; empty if its target is unknown.
pub fn named_in(line: &str) -> Vec<String> {
    let Ok(mut line) = TableLine::parse(line) else { return Vec::new() };
    places(&line).into_iter().map(|at| std::mem::take(&mut line.args[at])).collect()
}

/// A table of the caller's folder, with absolute paths: for a server whose relative paths begin
/// elsewhere. A line that cannot be parsed stays as it is: the server says what is wrong with it.
///
/// # Errors
/// There is no folder.
pub fn with_absolute_paths(table: &str) -> Outcome<String> {
    let line = |text: &str| {
        let Ok(mut line) = TableLine::parse(text) else { return Ok(text.to_owned()) };
        for at in places(&line) {
            let word = &mut line.args[at];
            if path_in(word).is_some() {
                *word = absolute(Path::new(&unescape_word(word)))?;
            }
        }
        Ok(line.to_string())
    };
    let lines: Outcome<Vec<String>> = table.lines().map(line).collect();
    lines.map(|lines| lines.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::with_absolute_paths;

    #[test]
    fn only_devices_that_are_paths_become_absolute() {
        let here = cairn_block::escape_word(std::env::current_dir().unwrap().to_str().unwrap());
        for (table, expected) in [
            ("0 8 linear a 0", format!("0 8 linear {here}/a 0")),
            ("0 8 linear my\\040disk/a 0", format!("0 8 linear {here}/my\\040disk/a 0")),
            ("0 8 linear /a 0\n8 8 linear @b 0", "0 8 linear /a 0\n8 8 linear @b 0".to_owned()),
            ("0 8 linear qcow2:a 0", format!("0 8 linear qcow2:{here}/a 0")),
            ("0 8 linear mem:1M 0", "0 8 linear mem:1M 0".to_owned()),
            ("0 8 striped 2 4 a 0 b 0", format!("0 8 striped 2 4 {here}/a 0 {here}/b 0")),
            ("# a comment\nno line", "# a comment\nno line".to_owned()),
        ] {
            assert_eq!(with_absolute_paths(table).unwrap(), expected);
        }
    }
}

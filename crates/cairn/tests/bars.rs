//! The bars of the text: lines of at most 100 columns, files of at most 800 lines, functions of at
//! most 70 lines, and manuals whose prose has at most 100 columns.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

const COLUMNS: usize = 100;
const FILE_LINES: usize = 800;
const FUNCTION_LINES: usize = 70;

/// The folder of the workspace.
fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

/// The files below `folder` whose names end in `.extension`, without what builds leave there.
fn files(folder: &Path, extension: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        let built = entry.file_name() == "target";
        if entry.file_type().unwrap().is_dir() && !built {
            found.extend(files(&path, extension));
        } else if path.extension().is_some_and(|found| found == extension) {
            found.push(path);
        }
    }
    found
}

/// All Rust of the workspace, with the texts.
fn rust() -> Vec<(PathBuf, String)> {
    let folders = ["crates", "fuzz"].map(|folder| files(&workspace().join(folder), "rs"));
    let texts = folders.concat().into_iter().map(|path| {
        let text = fs::read_to_string(&path).unwrap();
        (path, text)
    });
    let texts: Vec<_> = texts.collect();
    assert!(texts.len() > 400, "only {} files found", texts.len());
    texts
}

/// The numbers and lengths of the lines that are too long.
fn long_lines(text: &str) -> Vec<(usize, usize)> {
    let lengths = text.lines().map(|line| line.chars().count());
    (1..).zip(lengths).filter(|&(_, length)| length > COLUMNS).collect()
}

/// True of the first line of a function, indented or not.
fn begins_function(line: &str) -> bool {
    let mut words = line.split_whitespace().skip_while(|word| {
        matches!(*word, "pub" | "const" | "async" | "unsafe" | "extern" | "\"C\"")
            || word.starts_with("pub(")
    });
    words.next() == Some("fn")
}

/// The first lines and lengths of the functions that are too long. A function ends at the brace
/// that is indented like its first line; a signature without a body ends at the next semicolon.
fn long_functions(text: &str) -> Vec<(usize, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut long = Vec::new();
    for (first, line) in lines.iter().enumerate().filter(|(_, line)| begins_function(line)) {
        let indent = &line[..line.len() - line.trim_start().len()];
        let close = format!("{indent}}}");
        let mut has_body = false;
        let last = lines[first..].iter().position(|line| {
            has_body |= line.contains('{');
            **line == close || (!has_body && line.ends_with(';')) || line.ends_with(" {}")
        });
        let length = last.expect("a function ends") + 1;
        if length > FUNCTION_LINES {
            long.push((first + 1, length));
        }
    }
    long
}

/// The long lines of a manual that are prose: neither a row of a table nor in a fenced block.
fn long_prose(text: &str) -> Vec<(usize, usize)> {
    let mut fenced = false;
    let mut is_prose = |line: &str| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fence && !fenced && !line.starts_with('|')
    };
    let prose: Vec<bool> = text.lines().map(&mut is_prose).collect();
    long_lines(text).into_iter().filter(|&(number, _)| prose[number - 1]).collect()
}

/// Fails with the lines, and their sizes, of which `find` returns any.
fn none_of_rust(find: impl Fn(&str) -> Vec<(usize, usize)>) {
    for (path, text) in rust() {
        let long = find(&text);
        assert!(long.is_empty(), "{}: (line, size) {long:?}", path.display());
    }
}

#[test]
fn no_line_of_rust_is_longer_than_100_columns() {
    none_of_rust(long_lines);
}

#[test]
fn no_file_of_rust_is_longer_than_800_lines() {
    for (path, text) in rust() {
        assert!(text.lines().count() <= FILE_LINES, "{}", path.display());
    }
}

#[test]
fn no_function_is_longer_than_70_lines() {
    none_of_rust(long_functions);
}

#[test]
fn no_prose_of_a_manual_is_wider_than_100_columns() {
    let manuals = files(&workspace().join("docs"), "md");
    assert!(manuals.len() > 20, "only {} manuals found", manuals.len());
    let pages = ["ARCHITECTURE.md", "README.md"].map(|page| workspace().join(page));
    for path in manuals.into_iter().chain(pages) {
        let long = long_prose(&fs::read_to_string(&path).unwrap());
        assert!(long.is_empty(), "{}: (line, columns) {long:?}", path.display());
    }
}

#[test]
fn the_counters_see_what_is_too_long() {
    let line = "x".repeat(COLUMNS);
    assert_eq!(long_lines(&format!("{line}\n{line}x\n")), [(2, 101)]);
    assert_eq!(long_lines(&"é".repeat(COLUMNS)), []);
    let body = "        step();\n".repeat(FUNCTION_LINES - 2);
    let short = format!("    pub(crate) async fn short() {{\n{body}    }}\n");
    let long = short.replace("fn short() {", "fn long(\n        a: u8,\n    ) {");
    assert_eq!(long_functions(&format!("{short}{long}")), [(71, 72)]);
    let declared = format!("fn declared();\n{body}");
    assert_eq!(long_functions(&format!("{declared}{declared}const fn end() {{}}\n")), []);
    let wide = format!("{line}x");
    let page = format!("```\n{wide}\n```\n| {wide} |\n{wide}\n");
    assert_eq!(long_prose(&page), [(5, 101)]);
}

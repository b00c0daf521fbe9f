//! The sessions in the manuals: each `console` block of `docs` is run, and prints what it says.
//!
//! A line that begins with `$ ` is a command, one with `> ` goes on with it, all others are what
//! it prints on stdout. The blocks of a page share a folder.

use std::fs;
use std::path::{Path, PathBuf};

use crate::place::Place;

struct Command {
    script: String,
    prints: Vec<String>,
}

/// The commands of a page, in order.
fn commands(page: &str) -> Vec<Command> {
    let mut commands: Vec<Command> = Vec::new();
    let blocks = page.split("```").skip(1).step_by(2);
    for line in blocks.filter_map(|block| block.strip_prefix("console\n")).flat_map(str::lines) {
        match (line.strip_prefix("$ "), line.strip_prefix("> "), commands.last_mut()) {
            (Some(script), ..) => {
                commands.push(Command { script: script.to_owned(), prints: Vec::new() });
            }
            (None, Some(more), Some(last)) => last.script.push_str(&format!("\n{more}")),
            (None, _, last) => last.expect("a command").prints.push(line.to_owned()),
        }
    }
    commands
}

fn pages() -> Vec<PathBuf> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let targets = fs::read_dir(docs.join("targets")).unwrap().map(|entry| entry.unwrap().path());
    targets.chain([docs.join("cli.md")]).collect()
}

#[test]
fn sessions_in_the_manuals_print_what_they_say() {
    for path in pages() {
        let (place, page) = (Place::new(), path.display());
        let commands = commands(&fs::read_to_string(&path).unwrap());
        assert!(commands.len() >= 3, "{page}");
        for Command { script, prints } in commands {
            let ran = place.shell(&script);
            assert_eq!(ran.code, 0, "{page}: {script}: {ran:?}");
            let printed: Vec<_> = ran.out.lines().map(str::trim_end).collect();
            assert_eq!(printed, prints, "{page}: {script}");
        }
    }
}

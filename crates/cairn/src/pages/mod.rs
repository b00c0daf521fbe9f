//! The manual pages and the completions, from the command line and the manuals in `docs`.
//!
//! A page of a verb has its options as `--help` tells them, what `docs/cli.md` says of it, and the
//! exit codes. A page of a target is its manual. Packages make them with `cairn man DIR`; there is
//! no other text to keep.

mod manual;
mod markdown;

use std::fs;
use std::path::Path;

use cairn_outcome::failure::{Outcome, system, wrong};
use cairn_outcome::{exit, stdout};
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;

use crate::cli::Cli;
use crate::dmsetup;
use crate::serve::{KEYS, TABLE_HELP};
use markdown::{example, heading, text, to_man};

/// The manual of the program.
const CLI: &str = include_str!("../../../../docs/cli.md");
/// What is promised when the power fails.
const DURABILITY: &str = include_str!("../../../../docs/durability.md");

macro_rules! targets {
    ($($name:literal),* $(,)?) => {
        /// The manuals of the targets, by name.
        const TARGETS: &[(&str, &str)] =
            &[$(($name, include_str!(concat!("../../../../docs/targets/", $name, ".md")))),*];
    };
}

targets![
    "bcache",
    "clone",
    "delay",
    "error",
    "flakey",
    "linear",
    "passthrough",
    "qcow2",
    "snapshot",
    "snapshot-merge",
    "snapshot-origin",
    "striped",
    "thin",
    "thin-pool",
    "writecache",
    "zero",
];

/// Sections of the manual of the program, with the pages that have them. With `true` a page has the
/// sections below, too.
const SECTIONS: &[(&str, bool, &[&str])] = &[
    ("Examples", true, &["cairn"]),
    ("Device arguments", true, &["cairn"]),
    ("Exports of NBD servers", true, &["cairn"]),
    ("Images of Ceph", true, &["cairn"]),
    ("Objects of web servers and object stores", true, &["cairn"]),
    ("Images of qemu", true, &["cairn"]),
    ("Images that stay warm", true, &["cairn"]),
    ("Owners", true, &["cairn"]),
    ("Verbs for a running server", false, &["cairn"]),
    ("serve", false, &["cairn-serve"]),
    ("TLS", true, &["cairn-serve"]),
    ("Virtual machines", true, &["cairn-serve"]),
    ("TOML file", false, &["cairn.toml"]),
    ("State file", true, &["cairn.toml", "cairn-state"]),
    ("Limits of exports", true, &["cairn-serve", "cairn-export"]),
    ("Watching", true, &["cairn-top", "cairn-events"]),
    ("Dirty markers", true, &["cairn-info"]),
    ("Remote disks", true, &["cairn-info", "cairn-metrics"]),
    ("Metrics", true, &["cairn-metrics"]),
    ("Block devices of the kernel", true, &["cairn-attach", "cairn-detach"]),
    ("Scripts for dmsetup", true, &["cairn-dmsetup"]),
    ("Upgrade", true, &["cairn-upgrade"]),
    ("Another table", true, &["cairn-load", "cairn-resume", "cairn-replace", "cairn-create"]),
    ("Caches", true, &["cairn-cache"]),
    ("Snapshots", true, &["cairn-snap"]),
    ("Thin pools", true, &["cairn-pool", "cairn-thin"]),
    ("Control socket", true, &["cairn-rpc"]),
];

/// `completions`: prints those of a shell.
///
/// # Errors
/// stdout cannot be written.
pub fn completions(shell: Shell) -> Outcome<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "cairn", &mut script);
    stdout::print(&String::from_utf8_lossy(&script))
}

/// `man`: writes all pages to a folder.
///
/// # Errors
/// The date is invalid, or the system refused.
pub fn write(folder: &Path, date: Option<&str>) -> Outcome<u8> {
    if let Some(date) = date.filter(|date| !is_date(date)) {
        return Err(wrong("", "--date", format!("'{date}'"), "YYYY-MM-DD"));
    }
    fs::create_dir_all(folder)
        .map_err(|error| system(folder.display().to_string(), "make", error))?;
    for page in pages(date.unwrap_or_default()) {
        let path = folder.join(format!("{}.{}", page.name, page.section));
        fs::write(&path, page.text)
            .map_err(|error| system(path.display().to_string(), "write", error))?;
    }
    Ok(exit::OK)
}

/// True for a text like 2026-11-28.
fn is_date(text: &str) -> bool {
    let is_in_place = |(at, byte): (usize, u8)| match at {
        4 | 7 => byte == b'-',
        _ => byte.is_ascii_digit(),
    };
    text.len() == 10 && text.bytes().enumerate().all(is_in_place)
}

/// A page.
struct Page {
    name: String,
    section: u8,
    text: String,
}

impl Page {
    /// A page with its title and what it is about.
    fn new(name: &str, section: u8, about: &str, date: &str) -> Page {
        let (title, version) = (name.to_uppercase(), env!("CARGO_PKG_VERSION"));
        let about = about.trim().trim_end_matches('.').replace('\n', " ");
        let (head, name) = (heading("name"), name.to_owned());
        let text = format!(
            "'\\\" t\n.TH \"{title}\" {section} \"{date}\" \"cairn {version}\" \"cairn\"\n\
             {head}{} \\- {}\n",
            text(&name).replace('-', "\\-"),
            text(&about)
        );
        Page { name, section, text }
    }

    /// Adds the sections of the manual that are this page's.
    fn add_sections(&mut self) {
        for (title, whole, _) in SECTIONS.iter().filter(|(.., pages)| pages.contains(&&*self.name))
        {
            let (part, level) = manual::section(CLI, title, *whole).expect("a test has all");
            self.text.push_str(&to_man(part, level));
        }
    }

    /// Adds the exit codes, and where to read on.
    fn end(mut self, see: &[(&str, u8)]) -> Page {
        if self.section == 1 {
            let (part, _) = manual::section(CLI, "Exit codes", true).expect("a test has all");
            let rest = part.split_once('\n').map_or("", |(_, rest)| rest);
            self.text.push_str(&(heading("exit status") + &to_man(rest, 2)));
        }
        let own = (self.name.as_str(), self.section);
        let others = see.iter().filter(|page| **page != own);
        let others = others.map(|(name, section)| {
            format!("\\fB{}\\fR({section})", text(name).replace('-', "\\-"))
        });
        let others: Vec<_> = others.collect();
        self.text.push_str(&(heading("see also") + &others.join(",\n") + "\n"));
        self.text = markdown::tidy(&self.text);
        self
    }
}

/// All pages.
fn pages(date: &str) -> Vec<Page> {
    let targets: Vec<_> = TARGETS.iter().map(|(name, _)| format!("cairn-{name}")).collect();
    let mut see = vec![
        ("cairn", 1),
        ("cairn-serve", 1),
        ("cairn.toml", 5),
        ("cairn-durability", 7),
        ("cairn-rpc", 7),
    ];
    let usual = see.clone();
    see.extend(targets.iter().map(|name| (name.as_str(), 7)));
    let mut pages = Vec::new();
    let mut command = Cli::command();
    command.build();
    add_verbs(&command, date, &see, &usual, &mut pages);
    let mut command = dmsetup::command();
    command.build();
    pages.push(of_dmsetup(&command, date).end(&usual));
    pages.push(of_file(date).end(&usual));
    let mut rpc = Page::new("cairn-rpc", 7, "the control protocol of a cairn server", date);
    rpc.add_sections();
    pages.push(rpc.end(&usual));
    let name = "cairn-durability";
    let about = "what cairn promises when the power fails";
    pages.push(of_manual(name, DURABILITY, about, date).end(&usual));
    for (name, manual) in TARGETS {
        let about = "kind of target for the tables of cairn";
        let about = first_sentence(manual).unwrap_or(about);
        pages.push(of_manual(&format!("cairn-{name}"), manual, about, date).end(&usual));
    }
    pages
}

/// The page of a command, and those of its verbs.
fn add_verbs(
    command: &Command,
    date: &str,
    see: &[(&str, u8)],
    usual: &[(&str, u8)],
    pages: &mut Vec<Page>,
) {
    let name = command.get_display_name().unwrap_or(command.get_name());
    let about = command.get_about().map(ToString::to_string).unwrap_or_default();
    let mut page = Page::new(name, 1, &about, date);
    add_options(&mut page, command);
    let verb = name.strip_prefix("cairn-").map(|verb| verb.replace('-', " "));
    let items = manual::items(CLI);
    let said = items
        .iter()
        .filter(|item| verb.as_deref().is_some_and(|verb| manual::is_of(&item.command, verb)));
    // A verb with verbs of its own has the section that has their items.
    if !command.has_subcommands() || command.get_name() == "format" {
        let said: Vec<_> = said.map(|item| item.text).collect();
        if !said.is_empty() {
            page.text.push_str(&(heading("usage") + &to_man(&said.join("\n"), 2)));
        }
    }
    if name == "cairn-serve" {
        page.text.push_str(&(heading("tables") + &example(TABLE_HELP)));
    }
    page.add_sections();
    pages.push(page.end(if name == "cairn" { see } else { usual }));
    for verb in command.get_subcommands().filter(|verb| is_shown(verb)) {
        add_verbs(verb, date, see, usual, pages);
    }
}

fn is_shown(verb: &Command) -> bool {
    !verb.is_hide_set() && verb.get_name() != "help"
}

/// Adds the synopsis, the options and the verbs of a command.
fn add_options(page: &mut Page, command: &Command) {
    let man = Man::new(command.clone());
    let mut text = Vec::new();
    let written = man
        .render_synopsis_section(&mut text)
        .and_then(|()| man.render_description_section(&mut text))
        .and_then(|()| man.render_options_section(&mut text));
    let written = match command.get_subcommands().any(is_shown) {
        true => written.and_then(|()| man.render_subcommands_section(&mut text)),
        false => written,
    };
    written.expect("memory takes all");
    page.text.push_str(&String::from_utf8_lossy(&text));
}

/// The page of the other name of the program.
fn of_dmsetup(command: &Command, date: &str) -> Page {
    let about = "the verbs of dmsetup for a cairn server";
    let mut page = Page::new("cairn-dmsetup", 1, about, date);
    let man = Man::new(command.clone());
    let mut text = Vec::new();
    let written = man.render_synopsis_section(&mut text);
    written.and_then(|()| man.render_options_section(&mut text)).expect("memory takes all");
    page.text.push_str(&String::from_utf8_lossy(&text));
    page.text.push_str(&heading("verbs"));
    for verb in command.get_subcommands().filter(|verb| is_shown(verb)) {
        let usage = verb.clone().render_usage().to_string();
        let usage = usage.trim_start_matches("Usage: ").replace('\n', " ");
        let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
        let (usage, about) = (markdown::text(&usage), markdown::text(&about));
        page.text.push_str(&format!(".TP\n\\fB{}\\fR\n{about}\n", usage.replace('-', "\\-")));
    }
    page.add_sections();
    page
}

/// The page of the TOML file.
fn of_file(date: &str) -> Page {
    let mut page = Page::new("cairn.toml", 5, "volumes, exports and sockets of a server", date);
    page.text.push_str(&heading("description"));
    page.text.push_str(".PP\nThe file of \\fBcairn serve\\fR. Paths in it are relative to it.\n");
    page.add_sections();
    // The block in the manual is this text.
    debug_assert!(CLI.contains(KEYS));
    page
}

/// The page of a manual.
fn of_manual(name: &str, manual: &str, about: &str, date: &str) -> Page {
    let mut page = Page::new(name, 7, about, date);
    let begin = manual.find("\n## ").unwrap_or(0);
    let head = manual[..begin].split_once('\n').map_or("", |(_, head)| head);
    if !head.trim().is_empty() {
        page.text.push_str(&(heading("description") + &to_man(head, 2)));
    }
    page.text.push_str(&to_man(&manual[begin..], 2));
    page
}

/// The sentence under the title of a manual.
fn first_sentence(manual: &str) -> Option<&str> {
    let paragraph = manual.split("\n\n").nth(1)?;
    let end = paragraph.find(['.', ':']).unwrap_or(paragraph.len());
    Some(&paragraph[..end])
}

/// The page of another manual, by the link to it.
fn page_of_link(to: &str) -> Option<(String, u8)> {
    let file = to.split('#').next()?.rsplit('/').next()?.strip_suffix(".md")?;
    match file {
        "cli" => Some(("cairn".to_owned(), 1)),
        "durability" => Some(("cairn-durability".to_owned(), 7)),
        _ if to.contains("formats/") => None,
        name => {
            TARGETS.iter().any(|(known, _)| *known == name).then(|| (format!("cairn-{name}"), 7))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::{CLI, KEYS, SECTIONS, TARGETS, manual, page_of_link, pages};

    #[test]
    fn every_section_of_the_manual_is_in_a_page() {
        let pages: BTreeSet<_> = pages("").into_iter().map(|page| page.name).collect();
        for (title, _, on) in SECTIONS {
            assert!(manual::section(CLI, title, true).is_some(), "no section {title}");
            assert!(on.iter().all(|page| pages.contains(*page)), "{on:?}");
        }
        let known: BTreeSet<_> = SECTIONS.iter().map(|(title, ..)| *title).collect();
        for heading in manual::headings(CLI).iter().filter(|heading| heading.level > 1) {
            // The synopsis and the tools are those of the verbs.
            let is_elsewhere = ["Synopsis", "Tools", "Exit codes"].contains(&&*heading.title);
            assert!(is_elsewhere || known.contains(&*heading.title), "{}", heading.title);
        }
        let (tools, _) = manual::section(CLI, "Tools", true).unwrap();
        for item in manual::items(tools) {
            let of = |page: &String| {
                let verb = page.strip_prefix("cairn-").unwrap_or_default().replace('-', " ");
                !verb.is_empty() && manual::is_of(&item.command, &verb)
            };
            assert!(pages.iter().any(of), "no page has: {}", item.command);
        }
    }

    #[test]
    fn every_target_and_every_key_has_its_page() {
        let docs = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/targets");
        let manuals = std::fs::read_dir(docs).unwrap().map(|entry| entry.unwrap().path());
        let manuals: BTreeSet<_> =
            manuals.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
        let known: BTreeSet<_> = TARGETS.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(known, manuals);
        assert!(manual::section(CLI, "TOML file", false).unwrap().0.contains(KEYS));
    }

    #[test]
    fn no_two_pages_have_one_name() {
        let pages = pages("2026-01-01");
        let names: BTreeSet<_> = pages.iter().map(|page| (&page.name, page.section)).collect();
        assert_eq!(names.len(), pages.len());
    }

    #[test]
    fn links_to_manuals_are_names_of_pages() {
        assert_eq!(page_of_link("../cli.md#owners"), Some(("cairn".to_owned(), 1)));
        assert_eq!(page_of_link("thin.md"), Some(("cairn-thin".to_owned(), 7)));
        assert_eq!(page_of_link("../formats/thin.md"), None);
        assert_eq!(page_of_link("#owners"), None);
    }
}

//! The manual pages and the completions.

use std::fs;

use super::place::Place;

#[test]
fn every_verb_has_a_page_and_is_completed() {
    let place = Place::new();
    assert_eq!(place.cairn(&["man", "pages", "--date", "2026-11-01"]).ok(), "");
    let help = place.cairn(&["--help"]).ok();
    let verbs = help.lines().filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let verbs: Vec<_> = verbs.filter(|verb| verb.starts_with(char::is_alphabetic)).collect();
    assert!(verbs.len() > 30, "{verbs:?}");
    let bash = place.cairn(&["completions", "bash"]).ok();
    for verb in verbs.into_iter().filter(|verb| *verb != "help") {
        let page = fs::read_to_string(place.path(&format!("pages/cairn-{verb}.1"))).unwrap();
        assert!(page.contains("2026\\-11\\-01") || page.contains("2026-11-01"), "{page}");
        for section in ["NAME", "SYNOPSIS", "EXIT STATUS", "SEE ALSO"] {
            assert!(page.lines().any(|line| line.replace('"', "") == format!(".SH {section}")));
        }
        assert!(bash.contains(&format!("cairn__subcmd__{verb}")) || bash.contains(verb));
    }
    let create = fs::read_to_string(place.path("pages/cairn-snap-create.1")).unwrap();
    assert!(create.contains("makes a snapshot of this moment"), "the manual's words: {create}");
    for page in ["cairn.1", "cairn-dmsetup.1", "cairn.toml.5", "cairn-writecache.7"] {
        assert!(place.exists(&format!("pages/{page}")), "{page}");
    }
}

#[test]
fn pages_are_refused_an_invalid_date() {
    let place = Place::new();
    for date in ["today", "99-99-9999", "2026-11-2x"] {
        let line = place.cairn(&["man", "pages", "--date", date]).refused(1);
        assert_eq!(line, format!("cairn: --date: found '{date}', expected YYYY-MM-DD\n"));
    }
}

#[test]
fn completions_are_there_for_the_usual_shells() {
    let place = Place::new();
    for (shell, begins) in [("bash", "_cairn()"), ("zsh", "#compdef cairn"), ("fish", "# Print")] {
        let script = place.cairn(&["completions", shell]).ok();
        assert!(script.starts_with(begins), "{shell}: {}", &script[..80]);
    }
}

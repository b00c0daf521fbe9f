//! Parts of a manual: its sections by heading, and what it says of a verb.

use std::ops::Range;

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

/// The section under a heading, and its level. With `whole` it has the sections below it.
pub fn section<'a>(manual: &'a str, title: &str, whole: bool) -> Option<(&'a str, usize)> {
    let headings = headings(manual);
    let at = headings.iter().position(|heading| heading.title == title)?;
    let Heading { begin, level, .. } = headings[at];
    let ends = |next: &&Heading| !whole || next.level <= level;
    let end = headings[at + 1..].iter().find(ends).map_or(manual.len(), |next| next.begin);
    Some((&manual[begin..end], level))
}

/// A heading of a manual.
pub struct Heading {
    /// Its text.
    pub title: String,
    /// 1 is that of the manual.
    pub level: usize,
    /// Where it begins.
    begin: usize,
}

/// All headings, in order.
pub fn headings(manual: &str) -> Vec<Heading> {
    let mut headings: Vec<Heading> = Vec::new();
    let mut is_inside = false;
    for (event, Range { start, .. }) in parse(manual) {
        match event {
            Event::Start(Tag::Heading { level, .. }) => {
                is_inside = true;
                headings.push(Heading {
                    title: String::new(),
                    level: level as usize,
                    begin: start,
                });
            }
            Event::End(TagEnd::Heading(_)) => is_inside = false,
            Event::Text(words) | Event::Code(words) if is_inside => {
                headings.last_mut().expect("it has begun").title.push_str(&words);
            }
            _ => {}
        }
    }
    headings
}

/// An item of a list that begins with a command.
pub struct Item<'a> {
    /// The command, without `cairn`.
    pub command: String,
    /// The item, as markdown.
    pub text: &'a str,
}

/// The items of all lists that are in no other list and begin with code.
pub fn items(manual: &str) -> Vec<Item<'_>> {
    let (mut items, mut depth, mut begun) = (Vec::new(), 0u32, None);
    for (event, place) in parse(manual) {
        match event {
            Event::Start(Tag::List(_)) => depth += 1,
            Event::End(TagEnd::List(_)) => depth -= 1,
            Event::Start(Tag::Item) if depth == 1 => begun = Some(place),
            Event::Start(Tag::Paragraph) => {}
            Event::Code(command) => {
                if let Some(place) = begun.take() {
                    let command = command.strip_prefix("cairn ").unwrap_or(&command).to_owned();
                    items.push(Item { command, text: &manual[place] });
                }
            }
            _ => begun = None,
        }
    }
    items
}

fn parse(manual: &str) -> impl Iterator<Item = (Event<'_>, Range<usize>)> {
    Parser::new_ext(manual, Options::ENABLE_TABLES).into_offset_iter()
}

/// True if a command is that of a verb: `snap create V@NAME` is one of `snap create`.
pub fn is_of(command: &str, verb: &str) -> bool {
    command.strip_prefix(verb).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
}

#[cfg(test)]
mod tests {
    use super::{is_of, items, section};

    const MANUAL: &str = "# t\n\n## a\nx\n### b\n- `cairn v W`: one\n  - `n`: two\n- `--o`\n\n\
                          ```\n## no\n```\n## c\ny\n";

    #[test]
    fn a_section_ends_where_the_next_one_of_its_level_begins() {
        assert_eq!(section(MANUAL, "a", false), Some(("## a\nx\n", 2)));
        let (whole, _) = section(MANUAL, "a", true).unwrap();
        assert!(whole.ends_with("## no\n```\n"), "{whole}");
        assert_eq!(section(MANUAL, "c", true), Some(("## c\ny\n", 2)));
        assert_eq!(section(MANUAL, "no", true), None);
    }

    #[test]
    fn items_that_begin_with_a_command_are_found() {
        let commands: Vec<_> = items(MANUAL).into_iter().map(|item| item.command).collect();
        assert_eq!(commands, ["v W", "--o"]);
        assert!(is_of("v W", "v") && is_of("v", "v") && !is_of("vm", "v"));
    }
}

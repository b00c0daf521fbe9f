//! Markdown as the manuals have it, in the language of man(7).
//!
//! Headings, paragraphs, lists, code, tables, emphasis and links are known; all else is left out.
//! What roff would take for a request or an escape is written so that it prints as it stands.

use std::iter::Peekable;

use pulldown_cmark::{Event, HeadingLevel, Options, Parser, Tag, TagEnd};

/// The longest cell of a table that is not broken into lines.
const LONG_CELL: usize = 30;
/// The letters of a line that a table has on a terminal of 80 columns.
const PAGE_WIDTH: usize = 70;
/// The letters between two columns.
const GAP: usize = 2;

/// Converts a text whose headings of `level` are those of the page.
pub fn to_man(markdown: &str, level: usize) -> String {
    let mut writer = Writer { level, ..Writer::default() };
    let mut events = Parser::new_ext(markdown, Options::ENABLE_TABLES).peekable();
    while let Some(event) = events.next() {
        writer.take(event, &mut events);
    }
    writer.end_text();
    writer.out
}

/// A heading of a page.
pub fn heading(title: &str) -> String {
    format!(".SH \"{}\"\n", text(&title.to_uppercase()).replace('"', "\\(dq"))
}

/// Lines that print as they stand.
pub fn example(lines: &str) -> String {
    format!(".sp\n.RS 4\n.EX\n{}.EE\n.RE\n", protect(&(code(lines.trim_end()) + "\n")))
}

/// Takes out space that a heading before it already makes, or that is there twice.
pub fn tidy(man: &str) -> String {
    let mut lines: Vec<&str> = Vec::new();
    for line in man.lines() {
        let last = lines.last().copied().unwrap_or_default();
        let is_below_heading = last.starts_with(".SH") || last.starts_with(".SS");
        match line {
            ".PP" | ".sp" | ".br" if is_below_heading => continue,
            ".br" if last == ".sp" || last.is_empty() => continue,
            ".sp" | "" if last == ".br" => drop(lines.pop()),
            _ => {}
        }
        lines.push(line);
    }
    lines.join("\n") + "\n"
}

/// Words in a paragraph.
pub fn text(words: &str) -> String {
    escape(words, "-")
}

/// Words that a user types: a hyphen is a minus.
fn code(words: &str) -> String {
    escape(words, "\\-")
}

/// The same; a line may end within a long word.
fn breakable(words: &str) -> String {
    let words = code(words);
    match words.len() > LONG_CELL && !words.contains(' ') {
        true => words.replace('/', "/\\:").replace(',', ",\\:"),
        false => words,
    }
}

fn escape(words: &str, hyphen: &str) -> String {
    let mut out = String::new();
    for letter in words.chars() {
        match letter {
            '\\' => out.push_str("\\e"),
            '-' => out.push_str(hyphen),
            '\'' => out.push_str("\\(aq"),
            '`' => out.push_str("\\(ga"),
            '^' => out.push_str("\\(ha"),
            '~' => out.push_str("\\(ti"),
            letter if letter.is_ascii() => out.push(letter),
            letter => out.push_str(&format!("\\[u{:04X}]", u32::from(letter))),
        }
    }
    out
}

/// Keeps roff from taking a line for a request.
fn protect(lines: &str) -> String {
    let line = |line: &str| match line.starts_with('.') {
        true => format!("\\&{line}\n"),
        false => format!("{line}\n"),
    };
    lines.lines().map(line).collect()
}

#[derive(Default)]
struct Writer {
    /// The level of the headings of a page.
    level: usize,
    out: String,
    /// The paragraph so far.
    line: String,
    /// The lists that are open, each with its next number, if it has numbers.
    lists: Vec<Option<u64>>,
    /// An item has begun and has no text yet.
    is_fresh: bool,
    /// Where the text of the open link begins in `line`.
    link: usize,
}

impl Writer {
    fn take<'a>(
        &mut self,
        event: Event<'a>,
        events: &mut Peekable<impl Iterator<Item = Event<'a>>>,
    ) {
        match event {
            Event::Text(words) => self.line.push_str(&text(&words)),
            Event::Code(words) => self.line.push_str(&format!("\\fB{}\\fR", breakable(&words))),
            Event::SoftBreak | Event::HardBreak => self.line.push('\n'),
            Event::Start(Tag::Paragraph) => self.begin_paragraph(),
            Event::Start(Tag::Emphasis) => self.line.push_str("\\fI"),
            Event::Start(Tag::Strong) => self.line.push_str("\\fB"),
            Event::End(TagEnd::Emphasis | TagEnd::Strong) => self.line.push_str("\\fR"),
            Event::Start(Tag::Link { dest_url, .. }) => {
                self.link = self.line.len();
                while events.peek().is_some_and(|next| *next != Event::End(TagEnd::Link)) {
                    let inner = events.next().expect("it was just seen");
                    self.take(inner, events);
                }
                self.end_link(&dest_url);
            }
            Event::Start(Tag::Heading { .. }) => self.end_text(),
            Event::End(TagEnd::Heading(level)) => self.end_heading(level),
            Event::Start(Tag::List(first)) => {
                self.end_text();
                if !self.lists.is_empty() {
                    self.out.push_str(".RS 2\n");
                }
                self.lists.push(first);
            }
            Event::End(TagEnd::List(_)) => {
                self.lists.pop();
                if !self.lists.is_empty() {
                    self.out.push_str(".RE\n");
                }
            }
            Event::Start(Tag::Item) => self.begin_item(),
            Event::End(TagEnd::Item | TagEnd::Paragraph) => self.end_text(),
            Event::Start(Tag::CodeBlock(_)) => {
                self.end_text();
                let mut lines = String::new();
                while let Some(Event::Text(more)) = events.next_if(|e| matches!(e, Event::Text(_)))
                {
                    lines.push_str(&more);
                }
                self.out.push_str(&example(&lines));
            }
            Event::Start(Tag::Table(columns)) => self.table(columns.len(), events),
            _ => {}
        }
    }

    /// Ends the paragraph, if there is one.
    fn end_text(&mut self) {
        let line = std::mem::take(&mut self.line);
        if !line.is_empty() {
            self.out.push_str(&protect(&line));
            self.is_fresh = false;
        }
    }

    fn begin_paragraph(&mut self) {
        self.end_text();
        match (self.is_fresh, self.lists.is_empty()) {
            (true, _) => {}
            (false, true) => self.out.push_str(".PP\n"),
            (false, false) => self.out.push_str(".IP \"\" 2\n"),
        }
    }

    fn begin_item(&mut self) {
        self.end_text();
        match self.lists.last_mut() {
            Some(Some(number)) => {
                self.out.push_str(&format!(".IP {number}. 4\n"));
                *number += 1;
            }
            _ => self.out.push_str(".IP \\(bu 2\n"),
        }
        self.is_fresh = true;
    }

    fn end_heading(&mut self, level: HeadingLevel) {
        let title = std::mem::take(&mut self.line);
        let quoted = title.replace('"', "\\(dq");
        match (level as usize).saturating_sub(self.level) {
            0 => self.out.push_str(&format!(".SH \"{}\"\n", upper(&quoted))),
            1 => self.out.push_str(&format!(".SS \"{quoted}\"\n")),
            _ => self.out.push_str(&format!(".PP\n\\fB{title}\\fR\n")),
        }
    }

    /// A link to another manual by its name is the name of its page; of others the text is left.
    fn end_link(&mut self, to: &str) {
        let Some((page, section)) = super::page_of_link(to) else { return };
        let words = &self.line[self.link..];
        if page.ends_with(words) || words == "the program" {
            self.line.truncate(self.link);
            self.line.push_str(&format!("\\fB{}\\fR({section})", code(&page)));
        }
    }

    /// A table for tbl: columns with long cells share the line.
    fn table<'a>(
        &mut self,
        columns: usize,
        events: &mut Peekable<impl Iterator<Item = Event<'a>>>,
    ) {
        self.end_text();
        let (mut rows, mut row) = (Vec::new(), Vec::new());
        for event in events.by_ref() {
            match event {
                Event::End(TagEnd::Table) => break,
                Event::End(TagEnd::TableCell) => row.push(std::mem::take(&mut self.line)),
                Event::End(TagEnd::TableRow | TagEnd::TableHead) => {
                    rows.push(std::mem::take(&mut row));
                }
                Event::Text(words) => self.line.push_str(&text(&words)),
                Event::Code(words) => self.line.push_str(&format!("\\fB{}\\fR", code(&words))),
                _ => {}
            }
        }
        let widths = broken_columns(columns, &rows);
        let format = |font: &str| {
            let column = |width: &Option<usize>| match width {
                Some(width) => format!("lw({width}n){font}"),
                None => format!("l{font}"),
            };
            widths.iter().map(column).collect::<Vec<_>>().join(&format!("{GAP} "))
        };
        // As wide as the page, also in a list.
        let indent = 2 * self.lists.len();
        if indent > 0 {
            self.out.push_str(&format!(".in -{indent}n\n"));
        }
        // Words are neither broken nor moved apart in the columns.
        self.out.push_str(&format!(".sp\n.na\n.nh\n.TS\n{}\n{}.\n", format("b"), format("")));
        for row in rows {
            let cell = |(cell, width): (String, &Option<usize>)| match (width, cell.is_empty()) {
                (Some(_), false) => format!("T{{\n{}T}}", protect(&cell)),
                // A line that begins with a dot is a request.
                _ => format!("\\&{cell}"),
            };
            let cells: Vec<_> = row.into_iter().zip(&widths).map(cell).collect();
            self.out.push_str(&(cells.join("\t") + "\n"));
        }
        self.out.push_str(".TE\n.hy\n.ad\n");
        if indent > 0 {
            self.out.push_str(&format!(".in +{indent}n\n"));
        }
    }
}

/// The widths of the columns of a table that are broken into lines, so that it fits on a page.
fn broken_columns(columns: usize, rows: &[Vec<String>]) -> Vec<Option<usize>> {
    let widths: Vec<usize> = (0..columns).map(|at| longest(rows, at, shown_len)).collect();
    let words: Vec<usize> = (0..columns).map(|at| longest(rows, at, longest_word)).collect();
    let mut is_broken: Vec<bool> = widths.iter().map(|width| *width > LONG_CELL).collect();
    loop {
        let share = |at: usize| if is_broken[at] { words[at] } else { widths[at] };
        let sum: usize = (0..columns).map(|at| share(at) + GAP).sum();
        let breaks = |at: &usize| !is_broken[*at] && words[*at] < widths[*at];
        let widest = (0..columns).filter(breaks).max_by_key(|at| widths[*at]);
        match widest.filter(|_| sum > PAGE_WIDTH) {
            Some(at) => is_broken[at] = true,
            None => break,
        }
    }
    let whole = (0..columns).filter(|at| !is_broken[*at]).map(|at| widths[at] + GAP).sum();
    let count = is_broken.iter().filter(|broken| **broken).count().max(1);
    let each = (PAGE_WIDTH.saturating_sub(whole) / count).saturating_sub(GAP);
    let width = |at: usize| is_broken[at].then(|| each.min(widths[at]).max(words[at]));
    (0..columns).map(width).collect()
}

/// The most that `length` says of a cell of a column.
fn longest(rows: &[Vec<String>], at: usize, length: fn(&str) -> usize) -> usize {
    rows.iter().filter_map(|row| row.get(at)).map(|cell| length(cell)).max().unwrap_or(0)
}

fn longest_word(cell: &str) -> usize {
    cell.split(' ').map(shown_len).max().unwrap_or(0)
}

/// How many letters are seen of a cell.
fn shown_len(cell: &str) -> usize {
    cell.replace("\\fB", "").replace("\\fR", "").replace("\\-", "-").len()
}

/// In capitals, except the names of characters.
fn upper(title: &str) -> String {
    title
        .split_inclusive(' ')
        .map(|word| match word.contains('\\') {
            true => word.to_owned(),
            false => word.to_uppercase(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::to_man;

    #[test]
    fn what_roff_would_interpret_prints_as_it_stands() {
        let man = to_man(".TH it's\n\\n[x] `a-b\\040` \u{b5}s\n\n```\n.so /etc/passwd\n```\n", 2);
        let expected = ".PP\n\\&.TH it\\(aqs\n\\en[x] \\fBa\\-b\\e040\\fR \\[u00B5]s\n\
                        .sp\n.RS 4\n.EX\n\\&.so /etc/passwd\n.EE\n.RE\n";
        assert_eq!(man, expected);
    }

    #[test]
    fn headings_lists_and_links_have_the_form_of_a_page() {
        let man = to_man("## A b\n### c\n- one\n  - two\n1. [linear](targets/linear.md)\n", 2);
        let expected = ".SH \"A B\"\n.SS \"c\"\n.IP \\(bu 2\none\n.RS 2\n.IP \\(bu 2\ntwo\n.RE\n\
                        .IP 1. 4\n\\fBcairn\\-linear\\fR(7)\n";
        assert_eq!(man, expected);
    }

    #[test]
    fn a_table_is_one_for_tbl() {
        let man = to_man("| a | b |\n|---|---|\n| `0` | ok |\n", 2);
        let expected = ".sp\n.na\n.nh\n.TS\nlb2 lb\nl2 l.\n\\&a\t\\&b\n\\&\\fB0\\fR\t\\&ok\n\
                        .TE\n.hy\n.ad\n";
        assert_eq!(man, expected);
    }
}

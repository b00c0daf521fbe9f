//! Texts of a page: escaping, limits, and the space that a label may need.
//!
//! This program does not know the fonts of a reader's browser. [`width`] is an upper bound for the
//! usual fonts without serifs, of which `DejaVu Sans` is the widest: a label that may not fit its
//! space gets an attribute that squeezes it ([`label`]).

/// The longest title of a page's plot, in characters. A longer one ends in an ellipsis.
pub const TITLE_CHARS_MAX: usize = 80;
/// The longest name of a line or axis in a plot, in characters.
pub const NAME_CHARS_MAX: usize = 48;

/// The text with everything that markup would read as its own replaced. Control characters, which
/// XML cannot hold, become U+FFFD; a line break becomes a space.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            '\n' | '\r' | '\t' => out.push(' '),
            '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// At most `max` characters: a longer text is cut and ends in an ellipsis.
pub fn shorten(text: &str, max: usize) -> String {
    if text.chars().count() <= max {
        return text.to_owned();
    }
    text.chars().take(max - 1).chain(['\u{2026}']).collect()
}

/// An upper bound of the width of a text at a size of 1000 units.
pub fn width(text: &str) -> u64 {
    text.chars().map(char_width).sum()
}

fn char_width(c: char) -> u64 {
    match c {
        ' ' | '.' | ',' | 'i' | 'j' | 'l' | '\'' => 330,
        '(' | ')' | '-' | '/' | ':' | 'f' | 't' | 'r' | 'I' => 420,
        'm' | 'M' | 'W' | '@' | '%' => 1000,
        'a'..='z' | '0'..='9' if c != 'w' => 640,
        'A'..='Z' | 'w' | '!'..='~' => 840,
        _ => 1100,
    }
}

/// What is drawn as a text.
pub struct Label<'a> {
    /// Its words.
    pub text: &'a str,
    /// Where, in pixels.
    pub at: (f64, f64),
    /// `start`, `middle` or `end`: which end of the text lies there.
    pub anchor: &'static str,
    /// The height of the letters, in pixels.
    pub size: u64,
    /// The space, in pixels.
    pub space: u64,
}

/// A text element. One that may be wider than its space is squeezed into it.
pub fn label(label: &Label<'_>) -> String {
    let Label { text, at: (x, y), anchor, size, space } = *label;
    let squeeze = if width(text) * size > space * 1000 {
        format!(" textLength=\"{space}\" lengthAdjust=\"spacingAndGlyphs\"")
    } else {
        String::new()
    };
    let text = escape(text);
    format!(
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\"{squeeze}>\
         {text}</text>\n"
    )
}

/// A field of a CSV file: quoted where it holds a comma, a quote, a line break or outer spaces.
pub fn csv_field(text: &str) -> String {
    let is_plain =
        !text.contains(['"', ',', '\n', '\r']) && !text.starts_with(' ') && !text.ends_with(' ');
    if is_plain { text.to_owned() } else { format!("\"{}\"", text.replace('"', "\"\"")) }
}

/// A line of a CSV file, as RFC 4180 has it but for the line break.
pub fn csv_line<T: AsRef<str>>(fields: impl IntoIterator<Item = T>) -> String {
    let fields: Vec<String> = fields.into_iter().map(|field| csv_field(field.as_ref())).collect();
    fields.join(",") + "\n"
}

#[cfg(test)]
mod tests {
    use super::{Label, csv_line, escape, label, shorten};

    #[test]
    fn markup_in_a_text_is_escaped_and_control_characters_are_replaced() {
        assert_eq!(escape("a<b> & \"c\" 'd'"), "a&lt;b&gt; &amp; &quot;c&quot; &#39;d&#39;");
        assert_eq!(escape("two\nlines\u{0}\u{1b}\u{ffff}"), "two lines\u{fffd}\u{fffd}\u{fffd}");
    }

    #[test]
    fn text_beyond_the_limit_ends_in_an_ellipsis() {
        assert_eq!(shorten("abcd", 4), "abcd");
        assert_eq!(shorten("abcde", 4), "abc\u{2026}");
        assert_eq!(shorten("\u{e9}\u{e9}\u{e9}", 2), "\u{e9}\u{2026}");
    }

    #[test]
    fn label_is_squeezed_only_if_it_may_be_wider_than_its_space() {
        let drawn =
            |text, space| label(&Label { text, at: (1.0, 2.0), anchor: "start", size: 10, space });
        assert!(!drawn("WW", 20).contains("textLength"));
        assert!(drawn("WW", 19).contains("textLength=\"19\""));
    }

    #[test]
    fn csv_fields_are_quoted_where_they_must_be() {
        let cases = [
            (vec!["a", "1.5", ""], "a,1.5,\n"),
            (vec!["a,b", "say \"no\""], "\"a,b\",\"say \"\"no\"\"\"\n"),
            (vec!["two\nlines", " x", "x "], "\"two\nlines\",\" x\",\"x \"\n"),
        ];
        for (fields, line) in cases {
            assert_eq!(csv_line(fields), line);
        }
    }
}

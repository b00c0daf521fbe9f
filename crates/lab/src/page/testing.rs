//! A check of markup, for tests.

/// The names of the elements, in order of their first tags.
///
/// # Panics
/// If the text is not well-formed: a tag without its end, an attribute without quotes or twice, a
/// bare `<` or `&`. It knows elements, attributes, entities and one document type; no comments.
pub fn elements(text: &str) -> Vec<String> {
    let (mut names, mut open) = (Vec::new(), Vec::new());
    let mut rest = text.strip_prefix("<!DOCTYPE html>").unwrap_or(text);
    while let Some(at) = rest.find('<') {
        check_text(&rest[..at]);
        let end = rest.find('>').unwrap_or_else(|| panic!("a tag without end: {rest:.60}"));
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(name), "a wrong end");
            continue;
        }
        let (tag, is_empty) = tag.strip_suffix('/').map_or((tag, false), |tag| (tag, true));
        let name: String = tag.chars().take_while(|c| !c.is_whitespace()).collect();
        check_attributes(&tag[name.len()..]);
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric()), "a name of {name:?}");
        if !is_empty {
            open.push(name.clone());
        }
        names.push(name);
    }
    assert!(rest.trim().is_empty(), "a text after the last element: {rest}");
    assert!(open.is_empty(), "without end: {open:?}");
    names
}

fn check_attributes(mut text: &str) {
    let mut seen = Vec::new();
    while !text.trim().is_empty() {
        assert!(text.starts_with(char::is_whitespace), "a space before {text}");
        let (name, value) = text.trim_start().split_once("=\"").expect("a value in quotes");
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-'), "a name of {name:?}");
        assert!(!seen.contains(&name), "{name} twice");
        seen.push(name);
        let (value, after) = value.split_once('"').expect("a quote at the end");
        check_text(value);
        text = after;
    }
}

fn check_text(text: &str) {
    for after in text.split('&').skip(1) {
        let (name, _) = after.split_once(';').expect("an end of an entity");
        assert!(["amp", "lt", "gt", "quot", "#39"].contains(&name), "an entity of {name:?}");
    }
}

//! The names of thin volumes on the command line: `VOLUME` or `VOLUME@NAME`, with or without
//! `POOL/` in front, or `POOL/thin-ID` for a volume without a name.

use cairn_outcome::failure::{Outcome, wrong};

use crate::names::SnapName;

const NAMELESS: &str = "thin-";

/// A volume of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spot {
    /// One with a name.
    Named {
        /// The pool, if it was said.
        pool: Option<String>,
        /// The name in full.
        name: String,
    },
    /// One without.
    Nameless {
        /// The pool.
        pool: String,
        /// Its number.
        id: u32,
    },
}

impl Spot {
    /// Parses what a user wrote.
    ///
    /// # Errors
    /// It is no name.
    pub fn parse(text: &str) -> Outcome<Spot> {
        let (pool, name) = match text.split_once('/') {
            Some((pool, name)) => (Some(pool), name),
            None => (None, text),
        };
        if pool.is_some_and(str::is_empty) || name.contains('/') {
            return Err(wrong(text, "name", format!("'{text}'"), "POOL/NAME"));
        }
        if let Some(id) = nameless_id(name) {
            let Some(pool) = pool else {
                let expected = format!("the pool too, as in POOL/{name}");
                return Err(wrong(text, "name", format!("'{text}'"), expected));
            };
            return Ok(Spot::Nameless { pool: pool.to_owned(), id });
        }
        check_name(name)?;
        Ok(Spot::Named { pool: pool.map(str::to_owned), name: name.to_owned() })
    }

    /// The name, for verbs that need one.
    ///
    /// # Errors
    /// It has none.
    pub fn named(self) -> Outcome<(Option<String>, String)> {
        match self {
            Spot::Named { pool, name } => Ok((pool, name)),
            Spot::Nameless { pool, id } => {
                let name = nameless(id);
                let expected = "one with a name (cairn thin rename gives it one)";
                Err(wrong(format!("{pool}/{name}"), "name", format!("'{name}'"), expected))
            }
        }
    }
}

/// The name shown for a volume without a name.
pub fn nameless(id: u32) -> String {
    format!("{NAMELESS}{id}")
}

/// True for a name of the form `thin-ID`.
pub fn is_nameless(name: &str) -> bool {
    nameless_id(name).is_some()
}

fn nameless_id(name: &str) -> Option<u32> {
    name.strip_prefix(NAMELESS)?.parse().ok()
}

fn check_name(name: &str) -> Outcome<()> {
    if name.contains('@') {
        return SnapName::parse(name).map(drop);
    }
    if name.is_empty() || name.contains(['/', ':']) || name.contains(char::is_whitespace) {
        let expected = "a name without spaces, '/' and ':'";
        return Err(wrong(name, "name", format!("'{name}'"), expected));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::Spot;

    #[test]
    fn names_are_read_with_or_without_their_pool() {
        let named = |pool: Option<&str>, name: &str| Spot::Named {
            pool: pool.map(str::to_owned),
            name: name.to_owned(),
        };
        assert_eq!(Spot::parse("vm").unwrap(), named(None, "vm"));
        assert_eq!(Spot::parse("p/vm@mon").unwrap(), named(Some("p"), "vm@mon"));
        let nameless = Spot::Nameless { pool: "p".into(), id: 7 };
        assert_eq!(Spot::parse("p/thin-7").unwrap(), nameless);
        assert!(nameless.named().unwrap_err().to_string().contains("thin rename"));
        for (text, part) in [
            ("", "without spaces"),
            ("p/", "without spaces"),
            ("/vm", "POOL/NAME"),
            ("p/a/b", "POOL/NAME"),
            ("a b", "without spaces"),
            ("vm@a@b", "not of a snapshot"),
            ("vm@real", "another name"),
            ("thin-7", "POOL/thin-7"),
        ] {
            let line = Spot::parse(text).unwrap_err().to_string();
            assert!(line.contains(part), "{text}: {line}");
        }
    }
}

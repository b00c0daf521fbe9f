//! The names of snapshots and of the volumes that carry them.
//!
//! A volume `V` with snapshots is several volumes: `V@NAME` for each snapshot, `V@real` with the
//! table that `V` had before, and while a snapshot is merged `V@merge`. No volume that a user
//! makes has an `@` in its name, so the names never collide.

use cairn_outcome::failure::{Outcome, wrong};

const REAL: &str = "real";
const MERGE: &str = "merge";

/// `VOLUME@NAME`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapName {
    /// The volume that it is a snapshot of.
    pub volume: String,
    /// Its own name.
    pub name: String,
}

impl SnapName {
    /// Parses `VOLUME@NAME`.
    ///
    /// # Errors
    /// A part is missing, or the name is reserved.
    pub fn parse(text: &str) -> Outcome<SnapName> {
        let refuse = |expected: &str| Err(wrong(text, "name", format!("'{text}'"), expected));
        let Some((volume, name)) = text.split_once('@') else {
            return refuse("VOLUME@NAME");
        };
        let proper = |part: &str| {
            !part.is_empty()
                && !part.contains(['@', '/', ':'])
                && !part.contains(char::is_whitespace)
        };
        if name.contains('@') && proper(volume) {
            return refuse("a snapshot of a volume, not of a snapshot");
        }
        if !proper(name) || volume.is_empty() || volume.contains(['/']) {
            return refuse("VOLUME@NAME without spaces, '/' and ':'");
        }
        if [REAL, MERGE].contains(&name) {
            return refuse("another name than 'real' and 'merge', which cairn uses itself");
        }
        Ok(SnapName { volume: volume.to_owned(), name: name.to_owned() })
    }

    /// The volume that the snapshot is.
    pub fn full(&self) -> String {
        format!("{}@{}", self.volume, self.name)
    }
}

/// The volume with the table that `volume` had before it had snapshots.
pub fn real_of(volume: &str) -> String {
    format!("{volume}@{REAL}")
}

/// The volume that merges a snapshot of `volume`.
pub fn merge_of(volume: &str) -> String {
    format!("{volume}@{MERGE}")
}

/// The volume that `name` belongs to, if it is a snapshot, `V@real` or `V@merge`.
pub fn parent_of(name: &str) -> Option<&str> {
    name.split_once('@').map(|(volume, _)| volume)
}

/// True for volumes that are never exported.
pub fn is_hidden(name: &str) -> bool {
    name.split_once('@').is_some_and(|(_, part)| [REAL, MERGE].contains(&part))
}

/// The snapshot's own name, if `name` is a snapshot of `volume`.
pub fn snapshot_of<'a>(name: &'a str, volume: &str) -> Option<&'a str> {
    let (parent, part) = name.split_once('@')?;
    (parent == volume && !is_hidden(name)).then_some(part)
}

/// Refuses a name for a volume that a user makes.
///
/// # Errors
/// It has an `@`.
pub fn refuse_at_sign(name: &str) -> Outcome<()> {
    if !name.contains('@') {
        return Ok(());
    }
    let expected = "a name without '@' (cairn snap create makes snapshots)";
    Err(wrong("volume", "name", format!("'{name}'"), expected))
}

#[cfg(test)]
mod tests {
    use super::{SnapName, is_hidden, parent_of, refuse_at_sign, snapshot_of};

    #[test]
    fn a_snapshot_is_named_by_its_volume_and_itself() {
        let name = SnapName::parse("vm@mon").unwrap();
        assert_eq!((name.volume.as_str(), name.name.as_str()), ("vm", "mon"));
        assert_eq!(name.full(), "vm@mon");
        for (text, part) in [
            ("vm", "expected VOLUME@NAME"),
            ("vm@", "expected VOLUME@NAME without"),
            ("@mon", "expected VOLUME@NAME without"),
            ("vm@a b", "expected VOLUME@NAME without"),
            ("vm@a:b", "expected VOLUME@NAME without"),
            ("vm@mon@tue", "not of a snapshot"),
            ("vm@real", "another name"),
            ("vm@merge", "another name"),
        ] {
            let line = SnapName::parse(text).unwrap_err().to_string();
            assert!(line.contains(part), "{text}: {line}");
        }
    }

    #[test]
    fn the_machinery_is_told_from_snapshots() {
        assert!(is_hidden("vm@real") && is_hidden("vm@merge") && !is_hidden("vm@mon"));
        assert!(!is_hidden("real"));
        assert_eq!((parent_of("vm@mon"), parent_of("vm")), (Some("vm"), None));
        assert_eq!(snapshot_of("vm@mon", "vm"), Some("mon"));
        assert_eq!(snapshot_of("vm@real", "vm"), None);
        assert_eq!(snapshot_of("w@mon", "vm"), None);
        assert!(refuse_at_sign("a@b").is_err());
    }
}

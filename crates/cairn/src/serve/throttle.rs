//! `--throttle` and `--background`: limits on the command line.

use std::collections::{BTreeMap, BTreeSet};

use cairn_block::ConfigError;
use cairn_control::throttles::Limits;
use cairn_outcome::failure::{Outcome, wrong};

/// The limits of exports: those of the configuration, and in their place `asked`, each
/// `[EXPORT:]LIMITS`. `default` is the export of those that name none.
///
/// # Errors
/// A text names no export and there is not exactly one, or one that another text names, or its
/// limits make no sense.
pub fn limits(
    configured: BTreeMap<String, Limits>,
    asked: &[String],
    default: Option<&str>,
) -> Outcome<BTreeMap<String, Limits>> {
    let (mut all, mut given) = (configured, BTreeSet::new());
    for text in asked {
        // Limits have no colon; the name of an export may have some.
        let (named, limits) = match text.rsplit_once(':') {
            Some((name, limits)) => (Some(name), limits),
            None => (None, text.as_str()),
        };
        let Some(name) = named.or(default) else {
            let expected = "EXPORT:LIMITS, as there is not exactly one volume";
            return Err(wrong("--throttle", "export", "none", expected));
        };
        let shown = format!("--throttle {name}");
        if !given.insert(name) {
            return Err(wrong(&shown, "export", "it twice", "all limits of an export at once"));
        }
        all.insert(name.to_owned(), Limits::parse(&shown, limits)?);
    }
    Ok(all)
}

/// The limits of background copies.
///
/// # Errors
/// They make no sense.
pub fn background(text: &str) -> Result<Limits, String> {
    let one_line = |error: ConfigError| error.to_string();
    let limits = Limits::parse("--background", text).map_err(one_line)?;
    refuse_directed("--background", &limits).map_err(one_line)?;
    Ok(limits)
}

/// A copy reads as much as it writes: there is one limit for both.
///
/// # Errors
/// A limit is for one direction.
pub fn refuse_directed(shown: &str, limits: &Limits) -> Outcome<()> {
    let expected = "iops-total and bps-total, with their bursts, or iops-size";
    match limits.directed() {
        Some(found) => Err(wrong(shown, "limit", found, expected)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use cairn_control::throttles::Limits;

    use super::limits;

    #[test]
    fn limits_without_an_export_are_for_the_default_one() {
        let asked = ["iops-total=1".to_owned(), "a:b:bps-read=1M".to_owned()];
        let file = [("vm".to_owned(), Limits::parse("vm", "bps-write=1").unwrap())];
        let all = limits(file.into(), &asked, Some("vm")).unwrap();
        let shown = |name: &str| all[name].to_string();
        assert_eq!((shown("vm"), shown("a:b")), ("iops-total=1".into(), "bps-read=1048576".into()));
    }

    #[test]
    fn limits_of_one_export_are_given_once() {
        for second in ["vm:bps-read=1", "bps-read=1"] {
            let asked = ["vm:iops-total=1".to_owned(), second.to_owned()];
            let line = limits(BTreeMap::new(), &asked, Some("vm")).unwrap_err().to_string();
            assert!(line.starts_with("--throttle vm: export: found it twice, expected"), "{line}");
        }
    }

    #[test]
    fn limits_of_no_export_are_refused() {
        let refused = |text: &str| {
            let asked = [text.to_owned()];
            limits(BTreeMap::new(), &asked, None).unwrap_err().to_string()
        };
        assert!(refused("iops-total=1").starts_with("--throttle: export: found none, expected"));
        assert!(refused("vm:iops=1").starts_with("--throttle vm: limit: found 'iops', expected"));
    }
}

//! The limits of exports and of background work, as people write them: judged, kept, shown.
//!
//! The names are those of qemu's disk throttling. The command line writes them with `-`, TOML and
//! the control socket with `_`; both are understood everywhere. What a [`Limits`] has been made of
//! was judged: it says what a [`Throttle`](cairn_block::Throttle) can do.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU64;

use cairn_backends::parse_size;
use cairn_block::{Burst, Rate, Rates, ThrottleLimits};
use cairn_outcome::failure::{Outcome, wrong};
use serde::{Deserialize, Serialize};

/// What stands for no limits on the command line.
pub const NONE: &str = "none";

/// The largest rate, and the largest burst in all.
const MOST: u64 = 1_000_000_000_000_000;

/// The limits: each a rate, which may have a burst of its name and `_max`, for so many seconds as
/// `_max_length` says.
const RATES: [&str; 6] =
    ["iops_total", "iops_read", "iops_write", "bps_total", "bps_read", "bps_write"];

/// An operation of more bytes counts as several.
const IOPS_SIZE: &str = "iops_size";

/// Limits that make sense; no entry means none.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, u64>")]
pub struct Limits(BTreeMap<String, u64>);

impl TryFrom<BTreeMap<String, u64>> for Limits {
    type Error = String;

    fn try_from(given: BTreeMap<String, u64>) -> Result<Limits, String> {
        Limits::judge("throttle", given).map_err(|error| error.to_string())
    }
}

impl fmt::Display for Limits {
    /// As the command line takes it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str(NONE);
        }
        let words = self.0.iter().map(|(key, value)| format!("{}={value}", shown(key)));
        f.write_str(&words.collect::<Vec<_>>().join(","))
    }
}

/// The name of a limit as messages have it.
fn shown(key: &str) -> String {
    key.replace('_', "-")
}

fn max_of(rate: &str) -> String {
    format!("{rate}_max")
}

fn length_of(rate: &str) -> String {
    format!("{rate}_max_length")
}

impl Limits {
    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Parses `iops-total=1000,bps-write=100M`, or `none`. `device` is what messages begin with.
    ///
    /// # Errors
    /// A word is no limit, or the limits make no sense.
    pub fn parse(device: &str, text: &str) -> Outcome<Limits> {
        if text == NONE {
            return Ok(Limits::default());
        }
        let mut given = BTreeMap::new();
        for word in text.split(',') {
            let expected = "LIMIT=NUMBER[,LIMIT=NUMBER]..., or none";
            let named = word.split_once('=').filter(|(key, _)| !key.is_empty());
            let Some((key, value)) = named else {
                return Err(wrong(device, "limits", format!("'{word}'"), expected));
            };
            let key = key.strip_prefix("throttling.").unwrap_or(key);
            let number = number_of_text(device, key, value)?;
            if given.insert(key.replace('-', "_"), number).is_some() {
                return Err(wrong(device, key, "it twice", "each limit once"));
            }
        }
        Limits::judge(device, given)
    }

    /// Judges numbers by their names.
    ///
    /// # Errors
    /// A name is unknown, or the limits make no sense.
    pub fn judge(device: &str, given: BTreeMap<String, u64>) -> Outcome<Limits> {
        let mut named = BTreeMap::new();
        for (key, value) in given {
            let shown = shown(&key);
            if named.insert(key.replace('-', "_"), value).is_some() {
                return Err(wrong(device, &shown, "it twice", "each limit once"));
            }
        }
        let given = named;
        let mut known = vec![IOPS_SIZE.to_owned()];
        for rate in RATES {
            known.extend([rate.to_owned(), max_of(rate), length_of(rate)]);
        }
        for (key, value) in &given {
            if !known.contains(key) {
                let rates: Vec<_> = RATES.map(shown).into();
                let expected = format!(
                    "{}, each also with -max and -max-length, or iops-size",
                    rates.join(", ")
                );
                return Err(wrong(device, "limit", format!("'{}'", shown(key)), expected));
            }
            if *value == 0 {
                return Err(wrong(device, &shown(key), 0, "1 or more (without it, no limit)"));
            }
            if *value > MOST {
                return Err(wrong(device, &shown(key), value, format!("{MOST} or less")));
            }
        }
        let limits = Limits(given);
        RATES.iter().try_for_each(|rate| limits.judge_burst(device, rate))?;
        ["iops", "bps"].iter().try_for_each(|unit| limits.judge_unit(device, unit))?;
        if limits.get(IOPS_SIZE).is_some() && !limits.0.keys().any(|key| is_iops_rate(key)) {
            let expected = "a limit of iops, too, or no iops-size";
            return Err(wrong(device, "iops", "none", expected));
        }
        Ok(limits)
    }

    /// A burst exceeds a rate, and lasts only if there is one.
    fn judge_burst(&self, device: &str, rate: &str) -> Outcome<()> {
        let [max, length] = [max_of(rate), length_of(rate)];
        let of = [rate, &max, &length].map(|key| self.get(key).map(NonZeroU64::get));
        match of {
            [None, Some(_), _] => {
                let expected = format!("a rate, too, or no {}", shown(&max));
                Err(wrong(device, &shown(rate), "none", expected))
            }
            [_, None, Some(_)] => {
                let expected = format!("a rate of the burst, or no {}", shown(&length));
                Err(wrong(device, &shown(&max), "none", expected))
            }
            [Some(rate_of), Some(found), _] if found < rate_of => {
                let expected = format!("{}, {rate_of}, or more", shown(rate));
                Err(wrong(device, &shown(&max), found, expected))
            }
            [_, Some(found), Some(seconds)] if found.saturating_mul(seconds) > MOST => {
                let expected = format!("{} seconds or less at this rate", MOST / found);
                Err(wrong(device, &shown(&length), seconds, expected))
            }
            _ => Ok(()),
        }
    }

    /// A unit has one limit for both directions, or some for each.
    fn judge_unit(&self, device: &str, unit: &str) -> Outcome<()> {
        let key = |direction: &str| format!("{unit}_{direction}");
        let total = self.get(&key("total")).is_some();
        let directed = ["read", "write"].map(key).into_iter().find(|key| self.get(key).is_some());
        match directed.filter(|_| total) {
            None => Ok(()),
            Some(other) => {
                let found = format!("it and {}", shown(&other));
                let expected = "one for both directions, or one for each";
                Err(wrong(device, &shown(&key("total")), found, expected))
            }
        }
    }

    fn get(&self, key: &str) -> Option<NonZeroU64> {
        self.0.get(key).copied().and_then(NonZeroU64::new)
    }

    fn rate(&self, rate: &str) -> Option<Rate> {
        let seconds = self.get(&length_of(rate)).unwrap_or(NonZeroU64::MIN);
        let burst = self.get(&max_of(rate)).map(|per_second| Burst { per_second, seconds });
        self.get(rate).map(|per_second| Rate { per_second, burst })
    }

    /// For a throttle.
    pub fn of_throttle(&self) -> ThrottleLimits {
        let [total, read, write, all, reads, writes] = RATES.map(|rate| self.rate(rate));
        ThrottleLimits {
            iops: Rates { total, read, write },
            bytes: Rates { total: all, read: reads, write: writes },
            iops_size: self.get(IOPS_SIZE),
        }
    }

    /// The first limit of one direction, if there is any.
    pub fn directed(&self) -> Option<String> {
        let is_directed = |key: &&String| key.contains("_read") || key.contains("_write");
        self.0.keys().find(is_directed).map(|key| shown(key))
    }
}

fn is_iops_rate(key: &str) -> bool {
    RATES.contains(&key) && key.starts_with("iops")
}

/// The number of a text: with a suffix for bytes.
///
/// # Errors
/// It is none.
pub fn number_of_text(device: &str, key: &str, text: &str) -> Outcome<u64> {
    let is_bytes = key.starts_with("bps") || key.replace('-', "_") == IOPS_SIZE;
    let (number, expected) = match is_bytes && !key.ends_with("length") {
        true => (parse_size(text).ok(), "bytes, like 1048576 or 100M"),
        false => (text.parse().ok(), "a number"),
    };
    number.ok_or_else(|| wrong(device, &shown(key), format!("'{text}'"), expected))
}

#[cfg(test)]
mod tests {
    use super::Limits;

    fn parse(text: &str) -> Result<Limits, String> {
        Limits::parse("export 'vm'", text).map_err(|error| error.to_string())
    }

    #[test]
    fn names_of_qemu_and_sizes_are_understood() {
        let limits = parse("iops-total=1000,throttling.bps_write=100M,iops-size=4k").unwrap();
        assert_eq!(limits.to_string(), "bps-write=104857600,iops-size=4096,iops-total=1000");
        assert_eq!(parse(&limits.to_string()).unwrap(), limits);
        assert!(parse("none").unwrap().is_empty());
        assert_eq!(parse("none").unwrap().to_string(), "none");
        let all = limits.of_throttle();
        assert_eq!(all.iops.total.unwrap().per_second.get(), 1000);
        assert_eq!(all.bytes.write.unwrap().per_second.get(), 100 << 20);
        assert_eq!((all.bytes.total, all.iops_size.unwrap().get()), (None, 4096));
    }

    #[test]
    fn burst_lasts_a_second_unless_it_says_how_long() {
        let burst = |text| parse(text).unwrap().of_throttle().iops.read.unwrap().burst.unwrap();
        let short = burst("iops-read=10,iops-read-max=10");
        assert_eq!((short.per_second.get(), short.seconds.get()), (10, 1));
        assert_eq!(burst("iops-read=1,iops-read-max=2,iops-read-max-length=60").seconds.get(), 60);
    }

    #[test]
    fn limits_that_make_no_sense_are_refused_in_one_line() {
        for (text, expected) in [
            ("", "limits: found '', expected LIMIT=NUMBER"),
            ("iops-total", "limits: found 'iops-total', expected LIMIT=NUMBER"),
            ("iops-total=x", "iops-total: found 'x', expected a number"),
            ("iops-total=1K", "iops-total: found '1K', expected a number"),
            ("bps-total=1.5M", "bps-total: found '1.5M', expected bytes, like"),
            ("frob=1", "limit: found 'frob', expected iops-total, iops-read, iops-write, bps-"),
            ("iops-total=0", "iops-total: found 0, expected 1 or more"),
            ("bps-total=1000T", "bps-total: found 1099511627776000, expected 1000000000000000"),
            ("iops-read=1,iops-read=2", "iops-read: found it twice, expected each limit once"),
            (
                "iops-total=1,iops-write=1",
                "iops-total: found it and iops-write, expected one for both directions, or one",
            ),
            (
                "iops-total=9,iops-total-max=8",
                "iops-total-max: found 8, expected iops-total, 9, or more",
            ),
            ("bps-read-max=8", "bps-read: found none, expected a rate, too, or no bps-read-max"),
            (
                "iops-total=1,iops-total-max-length=5",
                "iops-total-max: found none, expected a rate of the burst, or no iops-total-max-",
            ),
            (
                "bps-total=1,bps-total-max=1T,bps-total-max-length=1000",
                "bps-total-max-length: found 1000, expected 909 seconds or less",
            ),
            ("bps-total=1,iops-size=4K", "iops: found none, expected a limit of iops, too"),
        ] {
            let line = parse(text).unwrap_err();
            assert!(line.contains(&format!("export 'vm': {expected}")), "{line}");
            assert!(!line.contains('\n'), "{line}");
        }
    }

    #[test]
    fn limit_by_both_of_its_names_is_refused() {
        let both = r#"{"iops_total": 5, "iops-total": 6}"#;
        let refused = serde_json::from_str::<Limits>(both).unwrap_err().to_string();
        assert!(refused.contains("iops-total: found it twice, expected each limit"), "{refused}");
    }

    #[test]
    fn limits_of_the_state_file_are_judged_like_others() {
        let limits: Limits = serde_json::from_str(r#"{"iops_total": 5}"#).unwrap();
        assert_eq!(serde_json::to_string(&limits).unwrap(), r#"{"iops_total":5}"#);
        let refused = serde_json::from_str::<Limits>(r#"{"iops_total": 0}"#).unwrap_err();
        assert!(refused.to_string().contains("iops-total: found 0"), "{refused}");
    }
}

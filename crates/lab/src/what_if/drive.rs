//! [`DriveSpec`]: a drive as a user names it on the command line, and how much may be written to
//! it.

use cairn_backends::parse_size;
use cairn_outcome::failure::{Outcome, wrong};

use crate::experiment::devices::{Flash, Model};

/// Bytes that sizes are multiples of, as those of experiments.
const SIZE_STEP: u64 = 4 << 20;
/// What a rated endurance counts.
const TERABYTE: u64 = 1_000_000_000_000;

/// A drive, or an array.
#[derive(Clone, Debug, PartialEq)]
pub struct DriveSpec {
    /// What kind.
    pub model: Model,
    /// The kind as experiments name it.
    pub word: String,
    /// How many drives an array has.
    pub members: Option<u32>,
    /// How much it holds.
    pub bytes: u64,
}

impl DriveSpec {
    /// Reads `MODEL:SIZE`, or without the size where there is a default. `raid5-4` is an array of
    /// four drives.
    ///
    /// # Errors
    /// No such model, or no size.
    pub fn parse(option: &str, text: &str, default: Option<u64>) -> Outcome<DriveSpec> {
        let (model, size) = match text.split_once(':') {
            Some((model, size)) => (model, Some(size)),
            None => (text, None),
        };
        let (word, members) = match model.strip_prefix("raid5-") {
            Some(members) => ("raid5", members.parse().ok()),
            None => (model, None),
        };
        let found = Model::of_word(word, members).map_err(|expected| {
            let expected = expected.replace("or raid5", "or raid5-N");
            wrong(option, "model", format!("'{model}'"), expected)
        })?;
        let bytes = match size {
            Some(size) => parse_size(size).ok(),
            None => default,
        };
        let bytes = bytes.map(|bytes| bytes / SIZE_STEP * SIZE_STEP).filter(|bytes| *bytes > 0);
        let bytes = bytes.ok_or_else(|| {
            let expected = "MODEL:SIZE, as \"nvme:20G\"";
            wrong(option, "size", format!("'{text}'"), expected)
        })?;
        Ok(DriveSpec { model: found, word: word.to_owned(), members, bytes })
    }

    /// The same in a size that an experiment takes.
    #[must_use]
    pub fn whole(self) -> DriveSpec {
        DriveSpec { bytes: self.bytes / SIZE_STEP * SIZE_STEP, ..self }
    }

    /// How it is called in a report.
    pub fn name(&self) -> String {
        format!("{} of {}", self.model.name(), size_word(self.bytes))
    }
}

/// A size that reads as it prints.
pub fn size_word(bytes: u64) -> String {
    let units = [(40, "T"), (30, "G"), (20, "M")];
    let whole = |(shift, _): &(u32, &str)| bytes.is_multiple_of(1 << shift) && bytes >> shift > 0;
    match units.into_iter().find(whole) {
        Some((shift, unit)) => format!("{}{unit}", bytes >> shift),
        None => bytes.to_string(),
    }
}

/// A usual drive of a kind: what it holds, and what may be written to it; none if it does not wear.
/// *Published*: a SATA SSD and an NVMe of the consumer class are mostly rated 600 TB for 1 TB, an
/// Optane 900P of 280 GB 5110 TB. *Assumed*: a drive with power-loss protection of 1 TB is written
/// whole once a day for five years.
fn usual(model: Model) -> Option<(u64, u64)> {
    match model {
        Model::Hdd | Model::HddUncached | Model::Raid5 { .. } => None,
        Model::Ssd(Flash::Sata | Flash::Nvme) => Some((TERABYTE, 600 * TERABYTE)),
        Model::Ssd(Flash::SataProtected | Flash::NvmeProtected) => {
            Some((TERABYTE, 5 * 365 * TERABYTE))
        }
        Model::Ssd(Flash::Optane) => Some((280 * TERABYTE / 1000, 5110 * TERABYTE)),
    }
}

/// How much may be written to the drive, or drives, of a cache of so many bytes: what the user
/// says, or what is usual for a drive of its kind; a larger cache is on several of them.
pub fn endurance_bytes(given: Option<u64>, model: Model, bytes: u64) -> Option<u64> {
    let (holds, rated) = usual(model)?;
    Some(given.unwrap_or_else(|| rated.saturating_mul(bytes.div_ceil(holds).max(1))))
}

/// Reads a rated endurance, as `600TBW` or `2PBW`.
///
/// # Errors
/// It is none.
pub fn parse_endurance(text: &str) -> Outcome<u64> {
    let number = |unit: &str, by: u64| {
        let digits = text.strip_suffix(unit)?;
        digits.parse::<u64>().ok()?.checked_mul(by).filter(|bytes| *bytes > 0)
    };
    let bytes = number("TBW", TERABYTE).or_else(|| number("PBW", 1000 * TERABYTE));
    let expected = "terabytes written, as \"600TBW\" or \"2PBW\"";
    bytes.ok_or_else(|| wrong("--endurance", "amount", format!("'{text}'"), expected))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drives_are_a_model_and_a_size() {
        let parse = |text, default| DriveSpec::parse("--x", text, default);
        let nvme = parse("nvme:20G", None).unwrap();
        assert_eq!((nvme.model, nvme.bytes), (Model::Ssd(Flash::Nvme), 20 << 30));
        assert_eq!(nvme.name(), "nvme of 20G");
        let array = parse("raid5-4:3T", None).unwrap();
        assert_eq!((array.word.as_str(), array.members), ("raid5", Some(4)));
        assert_eq!(parse("hdd", Some(4 << 40)).unwrap().name(), "hdd of 4T");
        let cases = [
            ("tape:1T", "model: found 'tape', expected hdd, hdd-uncached,"),
            ("", "model: found '', expected hdd"),
            ("raid5-2:1T", "model: found 'raid5-2', expected 3 to 64 members"),
            ("raid5-x:1T", "model: found 'raid5-x', expected 3 to 64 members"),
            ("raid5:1T", "model: found 'raid5', expected 3 to 64 members"),
            ("nvme", "size: found 'nvme', expected MODEL:SIZE"),
            ("nvme:", "size: found 'nvme:', expected"),
            ("nvme:20X", "size: found 'nvme:20X', expected"),
            ("nvme:4K", "size: found 'nvme:4K', expected"),
        ];
        for (text, expected) in cases {
            let refused = parse(text, None).unwrap_err().to_string();
            assert!(refused.starts_with("--x: ") && refused.contains(expected), "{refused}");
        }
    }

    #[test]
    fn sizes_read_as_they_print() {
        for bytes in [4 << 20, 20 << 30, 5 << 29, 3 << 40, 4097] {
            assert_eq!(parse_size(&size_word(bytes)).unwrap(), bytes);
        }
        assert_eq!([size_word(20 << 30), size_word(5 << 29)], ["20G", "2560M"]);
    }

    #[test]
    fn endurance_is_what_is_given_or_usual_for_the_size() {
        assert_eq!(parse_endurance("600TBW").unwrap(), 600 * TERABYTE);
        assert_eq!(parse_endurance("2PBW").unwrap(), 2000 * TERABYTE);
        for wrong in ["600", "0TBW", "TBW", "600tbw", "99999999999PBW"] {
            let refused = parse_endurance(wrong).unwrap_err().to_string();
            assert!(refused.starts_with("--endurance: amount: found '"), "{refused}");
        }
        let nvme = Model::Ssd(Flash::Nvme);
        assert_eq!(endurance_bytes(None, nvme, 20 << 30), Some(600 * TERABYTE));
        assert_eq!(endurance_bytes(None, nvme, TERABYTE), Some(600 * TERABYTE));
        assert_eq!(endurance_bytes(None, nvme, 3 * TERABYTE), Some(1800 * TERABYTE));
        assert_eq!(endurance_bytes(Some(5), nvme, TERABYTE), Some(5));
        assert_eq!(endurance_bytes(Some(5), Model::Hdd, TERABYTE), None);
    }
}

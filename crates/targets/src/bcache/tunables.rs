//! The numbers that a message changes, under their names in sysfs. They are not in the superblocks,
//! so a change lasts until the table is loaded again, as in the kernel until the device is stopped.

use cairn_block::sync::atomic::{AtomicU64, Ordering};
use cairn_block::{Attribute, MessageError, Value};

use super::volume::Bcache;

/// A number that a message changes.
pub(super) struct Tunable {
    pub name: &'static str,
    /// What it counts; empty for a switch.
    unit: &'static str,
    least: u64,
    most: u64,
    /// Where it is; none if the volume has no use for it.
    cell: fn(&Bcache) -> Option<&AtomicU64>,
}

/// The most that an attribute of 32 bits can be.
const U32: u64 = u32::MAX as u64;

const TUNABLES: &[Tunable] = &[
    // Streams of at least so much bypass the cache; 0 turns that off.
    Tunable {
        name: "sequential_cutoff",
        unit: "bytes",
        least: 0,
        most: U32,
        cell: |volume| Some(&volume.bypass.as_ref()?.sequential_cutoff),
    },
    // Reads of the cache device that take longer count as congestion; 0 turns that off.
    Tunable {
        name: "congested_read_threshold_us",
        unit: "microseconds",
        least: 0,
        most: U32,
        cell: |volume| Some(&volume.bypass.as_ref()?.congestion.read_threshold_us),
    },
    // The same for writes.
    Tunable {
        name: "congested_write_threshold_us",
        unit: "microseconds",
        least: 0,
        most: U32,
        cell: |volume| Some(&volume.bypass.as_ref()?.congestion.write_threshold_us),
    },
];

impl Tunable {
    /// The tunable of a name.
    pub fn of_name(name: &str) -> Option<&'static Tunable> {
        TUNABLES.iter().find(|tunable| tunable.name.eq_ignore_ascii_case(name))
    }

    /// The names, in order.
    pub fn names() -> impl Iterator<Item = &'static str> {
        TUNABLES.iter().map(|tunable| tunable.name)
    }

    /// The number that a word says.
    fn parse(&self, word: &str) -> Result<u64, MessageError> {
        let Tunable { name, unit, least, most, .. } = self;
        let number = word.parse().ok().filter(|number| (*least..=*most).contains(number));
        number.ok_or_else(|| {
            let unit = if unit.is_empty() { String::new() } else { format!(" of {unit}") };
            let expected = format!("a number{unit} from {least} to {most}");
            MessageError::Invalid(format!("{name}: found '{word}', expected {expected}"))
        })
    }

    /// Changes it.
    ///
    /// # Errors
    /// The word is no number in its range, or the volume has no use for it.
    pub fn set(&self, volume: &Bcache, word: &str) -> Result<(), MessageError> {
        let number = self.parse(word)?;
        let Some(cell) = (self.cell)(volume) else {
            let expected = "a backing device with its cache";
            let text = format!("{}: found a volume without it, expected {expected}", self.name);
            return Err(MessageError::Failed(text));
        };
        cell.store(number, Ordering::Relaxed);
        Ok(())
    }

    /// All of a volume.
    pub fn attributes(volume: &Bcache) -> impl Iterator<Item = Attribute> {
        TUNABLES.iter().map(|tunable| {
            let cell = (tunable.cell)(volume);
            let value =
                cell.map_or(Value::Absent, |cell| Value::Gauge(cell.load(Ordering::Relaxed)));
            Attribute { name: tunable.name, value }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::Tunable;

    #[test]
    fn words_that_are_no_number_in_the_range_are_refused() {
        let tunable = Tunable::of_name("Sequential_Cutoff").expect("it exists");
        for (word, number) in [("0", 0), ("4194304", 4 << 20), ("4294967295", 4_294_967_295)] {
            assert_eq!(tunable.parse(word).ok(), Some(number));
        }
        for word in ["", "4M", "4.0M", "-1", "4294967296", "1 ", "99999999999999999999"] {
            let error = tunable.parse(word).expect_err(word).to_string();
            let expected = format!(
                "sequential_cutoff: found '{word}', expected a number of bytes from 0 to 4294967295"
            );
            assert!(error.contains(&expected), "{error}");
        }
    }
}

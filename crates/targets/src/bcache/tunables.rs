//! The numbers that a message changes, under their names in sysfs. They are not in the superblocks,
//! so a change lasts until the table is loaded again, as in the kernel until the device is stopped.
//! Those of the set ([`super::set::Core`]) last until no volume of it has a table.

use cairn_block::sync::atomic::{AtomicU64, Ordering};
use cairn_block::{Attribute, MessageError, Value};

use super::config::Devices;
use super::volume::Bcache;
use super::writeback::Settings;

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
    // Write-zeroes of at least so much do not enter the cache; 0 turns that off.
    Tunable {
        name: "write_zeroes_cutoff",
        unit: "bytes",
        least: 0,
        most: U32,
        cell: |volume| Some(&volume.bypass.as_ref()?.write_zeroes_cutoff),
    },
    // With more of the cache in use than this, writes that are not synchronous go through it.
    Tunable {
        name: "cutoff_writeback",
        unit: "percent",
        least: 0,
        most: 70,
        cell: |volume| Some(&volume.bypass.as_ref()?.cutoff_writeback),
    },
    // The same for all writes.
    Tunable {
        name: "cutoff_writeback_sync",
        unit: "percent",
        least: 0,
        most: 90,
        cell: |volume| Some(&volume.bypass.as_ref()?.cutoff_writeback_sync),
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
    // How long a key waits for the journal without a flush.
    Tunable {
        name: "journal_delay_ms",
        unit: "milliseconds",
        least: 0,
        most: u16::MAX as u64,
        cell: |volume| Some(&volume.core.as_ref()?.journal_delay_ms),
    },
    // How much memory the extents of the set take before leaves leave it.
    Tunable {
        name: "btree_cache_size",
        unit: "bytes",
        least: 0,
        most: i64::MAX as u64,
        cell: |volume| Some(&volume.core.as_ref()?.node_cache),
    },
    // Whether writes join dirty data of their stripe in the cache.
    Tunable {
        name: "partial_stripes_expensive",
        unit: "",
        least: 0,
        most: 1,
        cell: |volume| Some(&volume.stripes.as_ref()?.expensive),
    },
    // After so many errors of the backing device the volume is stopped.
    Tunable {
        name: "io_error_limit",
        unit: "errors",
        least: 0,
        most: i32::MAX as u64,
        cell: |volume| volume.config.devices.backing().map(|_| &volume.traffic.errors.limit),
    },
    // After so many errors of the cache device the set is in error.
    Tunable {
        name: "cache/io_error_limit",
        unit: "errors",
        least: 0,
        most: U32,
        cell: |volume| Some(&volume.core.as_ref()?.errors.limit),
    },
    // After so many of its requests half of them count; 0: the count does not decay.
    Tunable {
        name: "cache/io_error_halflife",
        unit: "requests",
        least: 0,
        most: U32,
        cell: |volume| Some(&volume.core.as_ref()?.errors.halflife),
    },
    // Whether dirty data is written back in the background.
    Tunable {
        name: "writeback_running",
        unit: "",
        least: 0,
        most: 1,
        cell: |volume| rate(volume, |it| &it.running),
    },
    // How much of the cache may be dirty; 0: none, and no write waits.
    Tunable {
        name: "writeback_percent",
        unit: "percent",
        least: 0,
        most: 40,
        cell: |volume| rate(volume, |it| &it.percent),
    },
    // How long data waits that became dirty, or was dirty at the end of a pass.
    Tunable {
        name: "writeback_delay",
        unit: "seconds",
        least: 0,
        most: U32,
        cell: |volume| rate(volume, |it| &it.delay),
    },
    // The rate while clients are active.
    Tunable {
        name: "writeback_rate",
        unit: "sectors a second",
        least: 1,
        most: i32::MAX as u64,
        cell: |volume| rate(volume, |it| &it.rate),
    },
    // The lowest rate.
    Tunable {
        name: "writeback_rate_minimum",
        unit: "sectors a second",
        least: 1,
        most: U32,
        cell: |volume| rate(volume, |it| &it.minimum),
    },
    // How often the rate is updated.
    Tunable {
        name: "writeback_rate_update_seconds",
        unit: "seconds",
        least: 1,
        most: 60,
        cell: |volume| rate(volume, |it| &it.update_seconds),
    },
    // The divisor of the proportional term.
    Tunable {
        name: "writeback_rate_p_term_inverse",
        unit: "",
        least: 1,
        most: U32,
        cell: |volume| rate(volume, |it| &it.p_inverse),
    },
    // That of the integral term.
    Tunable {
        name: "writeback_rate_i_term_inverse",
        unit: "",
        least: 1,
        most: U32,
        cell: |volume| rate(volume, |it| &it.i_inverse),
    },
    // Whether fragmentation counts.
    Tunable {
        name: "writeback_consider_fragment",
        unit: "",
        least: 0,
        most: 1,
        cell: |volume| rate(volume, |it| &it.considers_fragments),
    },
    // The factors of the fragmentation term: up to 57 % in use, up to 64 %, and above.
    Tunable {
        name: "writeback_rate_fp_term_low",
        unit: "",
        least: 1,
        most: U32,
        cell: |volume| rate(volume, |it| &it.fragment_low),
    },
    Tunable {
        name: "writeback_rate_fp_term_mid",
        unit: "",
        least: 1,
        most: U32,
        cell: |volume| rate(volume, |it| &it.fragment_mid),
    },
    Tunable {
        name: "writeback_rate_fp_term_high",
        unit: "",
        least: 1,
        most: U32,
        cell: |volume| rate(volume, |it| &it.fragment_high),
    },
    // Of the set: whether fragmented buckets are packed inside the cache.
    Tunable {
        name: "copy_gc_enabled",
        unit: "",
        least: 0,
        most: 1,
        cell: |volume| Some(&volume.core.as_ref()?.gc.copy_enabled),
    },
    // Of the set: 1 begins a pass of collecting; it is 0 again once that has begun.
    Tunable {
        name: "trigger_gc",
        unit: "",
        least: 0,
        most: 1,
        cell: |volume| Some(&volume.core.as_ref()?.gc.trigger),
    },
    // Whether an idle device is written back as fast as it can.
    Tunable {
        name: "idle_max_writeback_rate",
        unit: "",
        least: 0,
        most: 1,
        cell: |volume| rate(volume, |it| &it.boosts_idle),
    },
];

fn rate<'v>(
    volume: &'v Bcache,
    cell: impl FnOnce(&'v Settings) -> &'v AtomicU64,
) -> Option<&'v AtomicU64> {
    let is_cached = matches!(volume.config.devices, Devices::Cached { .. });
    is_cached.then(|| cell(&volume.throttle.settings))
}

impl Tunable {
    /// The tunable of a name.
    pub fn of_name(name: &str) -> Option<&'static Tunable> {
        TUNABLES.iter().find(|tunable| tunable.name.eq_ignore_ascii_case(name))
    }

    /// The names, in order.
    pub fn names() -> impl Iterator<Item = &'static str> {
        TUNABLES.iter().map(|tunable| tunable.name)
    }

    /// True if all volumes of the set have the same.
    fn is_of_set(&self) -> bool {
        let own = ["btree_cache_size", "journal_delay_ms", "copy_gc_enabled", "trigger_gc"];
        self.name.starts_with("cache/") || own.contains(&self.name)
    }

    /// The number that a word says.
    fn parse(&self, word: &str) -> Result<u64, MessageError> {
        let Tunable { name, unit, least, most, .. } = self;
        let number = word.parse().ok().filter(|number| (*least..=*most).contains(number));
        number.ok_or_else(|| {
            let unit = if unit.is_empty() { String::new() } else { format!(" of {unit}") };
            let scope = if self.is_of_set() { ", for all volumes of the set" } else { "" };
            let expected = format!("a number{unit} from {least} to {most}{scope}");
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
        if let Some(core) = &volume.core {
            core.changed.notify(usize::MAX);
        }
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

    #[test]
    fn refusal_of_an_attribute_of_the_set_says_that_all_volumes_have_it() {
        for (name, unit, most) in [
            ("journal_delay_ms", " of milliseconds", 65_535_u64),
            ("cache/io_error_limit", " of errors", 4_294_967_295),
            ("trigger_gc", "", 1),
        ] {
            let tunable = Tunable::of_name(name).expect("it exists");
            let error = tunable.parse("x").expect_err("no number").to_string();
            let expected = format!("a number{unit} from 0 to {most}, for all volumes of the set");
            assert_eq!(error, format!("{name}: found 'x', expected {expected}"));
        }
    }
}

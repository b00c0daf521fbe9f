//! The table line of writecache: parsing, defaults, and printing as the kernel prints it.
//!
//! `writecache <p|s> <origin> <cache> <block_size> <#opt words> [options...]`. Only options
//! that were given are printed, in the kernel's fixed order.

use std::time::Duration;

use cairn_block::{ConfigError, ConfigKind, Ctor, SectorCount};
use cairn_format::writecache::BlockSize;

use crate::args::{Args, Device, OptionSpec, Spec};

/// The mode: the letter of the table line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// `s`: a block device.
    Ssd,
    /// `p`: persistent memory; its defaults and options, run by the same engine.
    Pmem,
}

/// The options, status fields and messages of writecache.
pub const SPEC: Spec = Spec {
    options: &[
        OptionSpec::new("start_sector", &["sector"]),
        OptionSpec::new("high_watermark", &["percent"]),
        OptionSpec::new("low_watermark", &["percent"]),
        OptionSpec::new("writeback_jobs", &["blocks"]),
        OptionSpec::new("autocommit_blocks", &["blocks"]),
        OptionSpec::new("autocommit_time", &["ms"]),
        OptionSpec::new("max_age", &["ms"]),
        OptionSpec::new("cleaner", &[]),
        OptionSpec::new("fua", &[]),
        OptionSpec::new("nofua", &[]),
        OptionSpec::new("metadata_only", &[]),
        OptionSpec::new("pause_writeback", &["ms"]),
    ],
    status_fields: super::status::STATUS_FIELDS,
    messages: super::status::MESSAGES,
};

/// Most words of optional arguments the kernel takes.
const OPTION_WORDS_MAX: usize = 18;

/// A parsed table line with its devices.
#[derive(Clone)]
pub(super) struct Config {
    /// The name of the volume, for the log.
    pub volume: String,
    pub mode: Mode,
    pub origin: Device,
    pub cache: Device,
    pub block_size: BlockSize,
    pub start_sector: Option<u64>,
    pub high_watermark: Option<u64>,
    pub low_watermark: Option<u64>,
    pub writeback_jobs: Option<u64>,
    pub autocommit_blocks: Option<u64>,
    pub autocommit_time_ms: Option<u64>,
    pub max_age_ms: Option<u64>,
    pub cleaner: bool,
    pub fua: Option<bool>,
    pub metadata_only: bool,
    pub pause_writeback_ms: Option<u64>,
}

const TARGET: &str = "writecache";

impl Config {
    /// Parses the words after the target's name and opens the devices.
    pub fn parse(ctor: &Ctor<'_>) -> Result<Config, ConfigError> {
        let mut args = Args::new(TARGET, ctor);
        let mode = match args.choice("mode", &["p", "s"])? {
            0 => Mode::Pmem,
            _ => Mode::Ssd,
        };
        let (origin, cache) = (args.device("origin")?, args.device("cache")?);
        let bytes = args.number("block_size", 0..=u64::from(u32::MAX))?;
        let block_size = BlockSize::new(bytes as u32)
            .map_err(|error| ConfigError::new(ConfigKind::Argument, TARGET, error.to_string()))?;
        if args.left() == 0 {
            let expected = "the count of the option words after it (it may be 0)";
            return Err(args.refuse("#options", "nothing", expected));
        }
        let mut config = Config {
            volume: ctor.events.volume().to_owned(),
            mode,
            origin,
            cache,
            block_size,
            start_sector: None,
            high_watermark: None,
            low_watermark: None,
            writeback_jobs: None,
            autocommit_blocks: None,
            autocommit_time_ms: None,
            max_age_ms: None,
            cleaner: false,
            fua: None,
            metadata_only: false,
            pause_writeback_ms: None,
        };
        let mut options = args.group("#options", OPTION_WORDS_MAX)?;
        while let Some(word) = options.option(SPEC.options)? {
            config.take_option(word, &mut options)?;
        }
        let (high, low) = (config.high_percent(), config.low_percent());
        if high < low {
            let found = format!("{high} with low_watermark {low}");
            return Err(args.refuse("high_watermark", found, "at least low_watermark"));
        }
        args.finish()?;
        Ok(config)
    }

    fn take_option(&mut self, word: &str, args: &mut Args<'_>) -> Result<(), ConfigError> {
        let (any, percent) = (0..=u64::from(u32::MAX), 0..=100);
        let only_for = |letter: &str| {
            let expected = format!("an option of '{letter}' mode (Invalid optional argument)");
            Err(args.refuse("option", format!("'{word}'"), &expected))
        };
        match word {
            "fua" | "nofua" if self.mode == Mode::Ssd => return only_for("s"),
            "pause_writeback" if self.mode == Mode::Pmem => return only_for("p"),
            "start_sector" => self.start_sector = Some(args.sector(word)?.0),
            "high_watermark" => self.high_watermark = Some(args.number(word, percent)?),
            "low_watermark" => self.low_watermark = Some(args.number(word, percent)?),
            "writeback_jobs" => self.writeback_jobs = Some(args.number(word, any)?),
            "autocommit_blocks" => self.autocommit_blocks = Some(args.number(word, any)?),
            "autocommit_time" => {
                self.autocommit_time_ms = Some(args.number(word, 0..=3_600_000)?);
            }
            "max_age" => self.max_age_ms = Some(args.number(word, 0..=86_400_000)?),
            "cleaner" => self.cleaner = true,
            "fua" => self.fua = Some(true),
            "nofua" => self.fua = Some(false),
            "metadata_only" => self.metadata_only = true,
            "pause_writeback" => {
                self.pause_writeback_ms = Some(args.number(word, 0..=60_000)?);
            }
            _ => unreachable!("the reader hands out words of the spec only"),
        }
        Ok(())
    }

    /// The words after the target's name, as the kernel prints them.
    pub fn print(&self) -> String {
        let mut options = Vec::new();
        let mut number = |name: &str, value: Option<u64>| {
            if let Some(value) = value {
                options.push(name.to_owned());
                options.push(value.to_string());
            }
        };
        number("start_sector", self.start_sector);
        number("high_watermark", self.high_watermark);
        number("low_watermark", self.low_watermark);
        number("writeback_jobs", self.writeback_jobs);
        number("autocommit_blocks", self.autocommit_blocks);
        number("autocommit_time", self.autocommit_time_ms);
        number("max_age", self.max_age_ms);
        if self.cleaner {
            options.push("cleaner".to_owned());
        }
        if let Some(fua) = self.fua {
            options.push(if fua { "fua" } else { "nofua" }.to_owned());
        }
        if self.metadata_only {
            options.push("metadata_only".to_owned());
        }
        if let Some(ms) = self.pause_writeback_ms {
            options.push("pause_writeback".to_owned());
            options.push(ms.to_string());
        }
        let letter = if self.mode == Mode::Ssd { "s" } else { "p" };
        let (origin, cache) = (&self.origin.argument, &self.cache.argument);
        let block = self.block_size.bytes();
        let mut text = format!("{letter} {origin} {cache} {block} {}", options.len());
        for word in options {
            text.push(' ');
            text.push_str(&word);
        }
        text
    }

    pub fn start(&self) -> SectorCount {
        SectorCount(self.start_sector.unwrap_or(0))
    }

    fn high_percent(&self) -> u64 {
        self.high_watermark.unwrap_or(50)
    }

    fn low_percent(&self) -> u64 {
        self.low_watermark.unwrap_or(45)
    }

    /// The watermarks as counts of free slots: writeback starts at the first, stops at the
    /// second.
    pub fn watermarks(&self, n_blocks: u32) -> (u32, u32) {
        let share = |percent: u64| ((u64::from(n_blocks) * (100 - percent) + 50) / 100) as u32;
        (share(self.high_percent()), share(self.low_percent()))
    }

    /// Most blocks being written back at once; `None` if the table line sets no limit.
    pub fn writeback_blocks_max(&self) -> Option<u64> {
        self.writeback_jobs.filter(|&jobs| jobs > 0)
    }

    pub fn autocommit_blocks(&self) -> u64 {
        let default = if self.mode == Mode::Ssd { 65_536 } else { 64 };
        self.autocommit_blocks.unwrap_or(default)
    }

    pub fn autocommit_time(&self) -> Duration {
        Duration::from_millis(self.autocommit_time_ms.unwrap_or(1000))
    }

    /// The age at which a block is written back: the given one less a sixteenth, which is how
    /// often ages are looked at.
    pub fn max_age(&self) -> Option<Duration> {
        self.max_age_ms.map(|ms| Duration::from_millis(ms - ms / 16))
    }

    pub fn pause_writeback(&self) -> Duration {
        let default = if self.mode == Mode::Ssd { 3000 } else { 0 };
        Duration::from_millis(self.pause_writeback_ms.unwrap_or(default))
    }

    /// Writeback writes to the origin with FUA instead of flushing it afterwards.
    pub fn writeback_with_fua(&self) -> bool {
        self.mode == Mode::Pmem && self.fua.unwrap_or(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rig::with_ctor;

    fn parse(line: &str) -> Result<Config, String> {
        with_ctor(line, |ctor| Config::parse(ctor).map_err(|error| error.to_string()))
    }

    #[test]
    fn every_option_prints_as_it_was_given_in_the_kernels_order() {
        let line = "s /o /c 4096 14 max_age 5000 high_watermark 60 low_watermark 50 \
                    start_sector 8 pause_writeback 0 metadata_only cleaner autocommit_time 7";
        let printed = parse(line).unwrap().print();
        assert_eq!(
            printed,
            "s /o /c 4096 14 start_sector 8 high_watermark 60 low_watermark 50 \
             autocommit_time 7 max_age 5000 cleaner metadata_only pause_writeback 0"
        );
        assert_eq!(parse(&printed).unwrap().print(), printed);
    }

    #[test]
    fn a_pmem_line_has_its_own_defaults_and_options() {
        let config = parse("p /o /c 512 1 NOFUA").unwrap();
        assert_eq!(config.print(), "p /o /c 512 1 nofua");
        assert_eq!(config.autocommit_blocks(), 64);
        assert_eq!(config.pause_writeback(), Duration::ZERO);
        assert!(!config.writeback_with_fua());
        assert!(parse("p /o /c 512 0").unwrap().writeback_with_fua());
        assert!(parse("p /o /c 512 2 pause_writeback 5").is_err());
        assert!(parse("s /o /c 512 1 fua").is_err());
    }

    #[test]
    fn watermarks_round_to_the_nearest_slot() {
        let config = parse("s /o /c 4096 0").unwrap();
        assert_eq!(config.watermarks(63), (32, 35));
    }

    #[test]
    fn wrong_words_are_named_with_what_was_expected() {
        for (line, part) in [
            ("x /o /c 4096 0", "mode: found 'x'"),
            ("s /o /c 4095 0", "block size: found 4095"),
            ("s /o /c 4096", "#options: found nothing"),
            ("s /o /c 4096 1", "#options: found 1 with 0 words"),
            ("s /o /c 4096 1 shiny", "option: found 'shiny'"),
            ("s /o /c 4096 2 low_watermark 60", "high_watermark"),
            ("s /o /c 4096 2 max_age 86400001", "max_age: found '86400001'"),
            ("s /o /c 4096 0 extra", "extra"),
        ] {
            let error = parse(line).err().expect(line);
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}

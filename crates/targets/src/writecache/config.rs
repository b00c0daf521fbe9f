//! The table line of writecache: parsing, defaults, and printing as the kernel prints it.
//!
//! Only options that were given are printed, in the kernel's fixed order.

use std::time::Duration;

use cairn_block::{Attribute, ConfigError, ConfigKind, Ctor, SectorCount};
use cairn_format::writecache::BlockSize;

use crate::args::{Args, Device};
use crate::spec::{Arg, Group, Kind, Opt, Span, Spec, Use};

/// The mode: the letter of the table line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// `s`: a block device.
    Ssd,
    /// `p`: persistent memory; its defaults and options, run by the same engine.
    Pmem,
}

const BLOCKS: &[Arg] = &[Arg::number("blocks", 0, u32::MAX as u64, "")];
const PERCENT: &[Arg] = &[Arg::number("percent", 0, 100, "")];

/// A time of at most so many milliseconds.
const fn ms(most: u64) -> Arg {
    Arg::number("ms", 0, most, "")
}

const OPTIONS: &[Opt] = &[
    Opt::new("start_sector", &[Arg::offset("sector")], "where the cache begins on its device")
        .default(0),
    Opt::new("high_watermark", PERCENT, "writeback starts when so much is used").default(50),
    Opt::new("low_watermark", PERCENT, "writeback stops when no more is used").default(45),
    Opt::new("writeback_jobs", BLOCKS, "most blocks in writeback at once; 0: no limit").default(0),
    Opt::new(
        "autocommit_blocks",
        BLOCKS,
        "a commit begins when so many blocks are uncommitted; 65536, in mode p 64",
    ),
    Opt::new("autocommit_time", &[ms(3_600_000)], "a commit begins so long after the first block")
        .default(1000),
    Opt::new("max_age", &[ms(86_400_000)], "blocks that are older are written back"),
    Opt::new("cleaner", &[], "caches no new blocks and writes back everything"),
    Opt::new("fua", &[], "mode p: writeback writes with FUA").instead_of("nofua"),
    Opt::new("nofua", &[], "mode p: writeback flushes the origin afterwards").instead_of("fua"),
    Opt::new("metadata_only", &[], "caches only file system metadata"),
    Opt::new(
        "pause_writeback",
        &[ms(60_000)],
        "mode s: writeback waits so long after a write around the cache; 3000",
    ),
];

/// What `writecache` declares. The kernel takes at most 18 words of optional arguments.
pub const SPEC: Spec = Spec {
    group: Group {
        count: "#options",
        item: "option",
        most: 18,
        needed: true,
        prints_zero: true,
        options: OPTIONS,
    },
    status_fields: super::status::STATUS_FIELDS,
    messages: super::status::MESSAGES,
    ..Spec::plain(
        "writecache",
        [1, 6, 0],
        &[
            Arg::word("mode", Kind::Word(&["p", "s"]), "persistent memory, or a block device"),
            Arg::device("origin", Use::Owns(Span::Whole), "the slow device").gives_length(),
            Arg::device("cache", Use::Owns(Span::From("start_sector")), "the fast device"),
            Arg::number("block_size", 0, u32::MAX as u64, "the size of a cache block in bytes"),
        ],
    )
};

/// A parsed table line with its devices.
#[derive(Clone)]
pub(super) struct Config {
    /// The name of the volume, for the log.
    pub volume: String,
    pub origin: Device,
    pub cache: Device,
    pub block_size: BlockSize,
    /// Where the cache begins on its device.
    pub start: SectorCount,
    high_percent: u64,
    low_percent: u64,
    /// Most blocks being written back at once; `None` if the table line sets no limit.
    pub writeback_blocks_max: Option<u64>,
    pub autocommit_blocks: u64,
    pub autocommit_time: Duration,
    /// The age at which a block is written back: the given one less a sixteenth, which is how
    /// often ages are looked at.
    pub max_age: Option<Duration>,
    pub cleaner: bool,
    pub metadata_only: bool,
    pub pause_writeback: Duration,
    /// Writeback writes to the origin with FUA instead of flushing it afterwards.
    pub writeback_with_fua: bool,
    args: Args,
}

impl Config {
    /// Parses the words after the target's name and opens the devices.
    pub fn parse(ctor: &Ctor<'_>) -> Result<Config, ConfigError> {
        let args = Args::parse(&SPEC, ctor)?;
        let mode = if args.word("mode") == Some("p") { Mode::Pmem } else { Mode::Ssd };
        let block_size = BlockSize::new(args.number("block_size") as u32).map_err(|error| {
            ConfigError::new(ConfigKind::Argument, SPEC.name, error.to_string())
        })?;
        let (foreign, letter): (&[&str], _) = match mode {
            Mode::Ssd => (&["fua", "nofua"], "s"),
            Mode::Pmem => (&["pause_writeback"], "p"),
        };
        if let Some(word) = foreign.iter().find(|word| args.has(word)) {
            let expected = format!("an option of '{letter}' mode (Invalid optional argument)");
            return Err(args.refuse("option", format!("'{word}'"), &expected));
        }
        let (high_percent, low_percent) =
            (args.number("high_watermark"), args.number("low_watermark"));
        if high_percent < low_percent {
            let found = format!("{high_percent} with low_watermark {low_percent}");
            return Err(args.refuse("high_watermark", found, "at least low_watermark"));
        }
        let given = |option: &str, default| args.given(option).unwrap_or(default);
        let (blocks, pause) = if mode == Mode::Ssd { (65_536, 3000) } else { (64, 0) };
        Ok(Config {
            volume: ctor.events.volume().to_owned(),
            origin: args.device("origin"),
            cache: args.device("cache"),
            block_size,
            start: SectorCount(args.number("start_sector")),
            high_percent,
            low_percent,
            writeback_blocks_max: Some(args.number("writeback_jobs")).filter(|&jobs| jobs > 0),
            autocommit_blocks: given("autocommit_blocks", blocks),
            autocommit_time: Duration::from_millis(args.number("autocommit_time")),
            max_age: args.given("max_age").map(|ms| Duration::from_millis(ms - ms / 16)),
            cleaner: args.has("cleaner"),
            metadata_only: args.has("metadata_only"),
            pause_writeback: Duration::from_millis(given("pause_writeback", pause)),
            writeback_with_fua: mode == Mode::Pmem && !args.has("nofua"),
            args,
        })
    }

    /// The options as they are now; a message may have made it a cleaner.
    pub fn attributes(&self, cleaner: bool) -> Vec<Attribute> {
        let mut args = self.args.clone();
        args.set_flag("cleaner", cleaner);
        args.set_number("autocommit_blocks", self.autocommit_blocks);
        args.set_number("pause_writeback", self.pause_writeback.as_millis() as u64);
        args.attributes()
    }

    /// The words after the target's name, as the kernel prints them.
    pub fn print(&self) -> String {
        self.args.to_string()
    }

    /// The watermarks as counts of free slots: writeback starts at the first, stops at the
    /// second.
    pub fn watermarks(&self, n_blocks: u32) -> (u32, u32) {
        let share = |percent: u64| ((u64::from(n_blocks) * (100 - percent) + 50) / 100) as u32;
        (share(self.high_percent), share(self.low_percent))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::with_ctor;

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
        assert_eq!(config.autocommit_blocks, 64);
        assert_eq!(config.pause_writeback, Duration::ZERO);
        assert!(!config.writeback_with_fua);
        assert!(parse("p /o /c 512 0").unwrap().writeback_with_fua);
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

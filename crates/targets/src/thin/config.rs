//! The table lines of `thin-pool` and `thin`: the words, their order, and how they are printed.

use std::time::Duration;

use cairn_block::{ConfigError, Ctor, Sector, SectorCount, SectorRange};

use crate::args::{Args, Device};
use crate::spec::{Arg, Group, Kind, Opt, Span, Spec, Use};

const SKIP_ZEROING: &str = "skip_block_zeroing";
const IGNORE_DISCARD: &str = "ignore_discard";
const NO_PASSDOWN: &str = "no_discard_passdown";
const READ_ONLY: &str = "read_only";
const ERROR_IF_FULL: &str = "error_if_no_space";
const TIMEOUT: &str = "no_space_timeout";
const DATA_MARK: &str = "data_mark";
const METADATA_MARK: &str = "metadata_mark";
const DATA_CRITICAL: &str = "data_critical";
const METADATA_CRITICAL: &str = "metadata_critical";
const GROW: &str = "grow";
const GROW_MAX: &str = "grow_max";
const DETECT: &str = "detect_zeroes";

const SECONDS: &[Arg] = &[Arg::number("seconds", 0, u32::MAX as u64, "")];
const PERCENT: &[Arg] = &[Arg::number("percent", 1, 100, "")];
const SIZE: &[Arg] = &[Arg::number("sectors", 1, u64::MAX >> 9, "")];
const MODE: Kind = Kind::Word(&["off", "unmap"]);

const FEATURES: &[Opt] = &[
    Opt::new(SKIP_ZEROING, &[], "new blocks are not zeroed"),
    Opt::new(IGNORE_DISCARD, &[], "volumes take no discards"),
    Opt::new(NO_PASSDOWN, &[], "the data device gets no discards"),
    Opt::new(READ_ONLY, &[], "the metadata is not changed"),
    Opt::new(ERROR_IF_FULL, &[], "writes without space fail at once"),
    Opt::new(TIMEOUT, SECONDS, "how long writes wait for space; 0: for ever").default(60).own(),
    Opt::new(DATA_MARK, PERCENT, "raises an event when so much data is used").default(75).own(),
    Opt::new(METADATA_MARK, PERCENT, "the same for metadata").default(85).own(),
    Opt::new(DATA_CRITICAL, PERCENT, "a second, critical event for data").default(95).own(),
    Opt::new(METADATA_CRITICAL, PERCENT, "the same for metadata").default(95).own(),
    Opt::new(GROW, SIZE, "the server makes the data file so much longer at low water").own(),
    Opt::new(GROW_MAX, SIZE, "no longer than this").own(),
    Opt::new(DETECT, &[Arg::word("mode", MODE, "")], "unmap: zeros provision nothing").own(),
];

/// What `thin-pool` declares. The group has the kernel's words and our eight pairs.
pub const POOL_SPEC: Spec = Spec {
    group: Group::features(20, true, FEATURES),
    status_fields: super::status::POOL_FIELDS,
    messages: super::message::MESSAGES,
    ..Spec::plain(
        "thin-pool",
        [1, 22, 0],
        &[
            Arg::device("metadata", Use::Owns(Span::Whole), "the metadata device"),
            Arg::device("data", Use::Owns(Span::Line), "the data device").gives_length(),
            Arg::number(
                "block_sectors",
                BLOCK_SECTORS_MIN,
                BLOCK_SECTORS_MAX,
                "the size of a data block, a multiple of 128",
            ),
            Arg::number("low_water_blocks", 0, u64::MAX, "an event when so few blocks are free"),
        ],
    )
};

/// What `thin` declares.
pub const THIN_SPEC: Spec = Spec {
    status_fields: super::status::THIN_FIELDS,
    ..Spec::plain(
        "thin",
        [1, 22, 0],
        &[
            Arg::device("pool", Use::Pool, "the pool, as @NAME"),
            Arg::number("id", 0, (1 << 24) - 1, "which volume of the pool"),
            Arg::device("origin", Use::Reads, "an external origin").optional().gives_length(),
        ],
    )
};

/// Smallest and largest data block, in sectors; also what it is a multiple of.
pub(super) const BLOCK_SECTORS_MIN: u64 = 128;
const BLOCK_SECTORS_MAX: u64 = 2_097_152;

/// What is done with zeros that a client writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DetectZeroes {
    /// They are data like any other.
    Off,
    /// They provision nothing; a whole block of them may be released.
    Unmap,
}

impl DetectZeroes {
    /// Of its word, without regard to case.
    pub fn of_word(word: &str) -> Option<DetectZeroes> {
        let modes = [DetectZeroes::Off, DetectZeroes::Unmap];
        modes.into_iter().find(|mode| mode.word().eq_ignore_ascii_case(word))
    }

    /// Its word.
    pub fn word(self) -> &'static str {
        match self {
            DetectZeroes::Off => "off",
            DetectZeroes::Unmap => "unmap",
        }
    }
}

/// What is done with discards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Discards {
    /// Mappings go, and the data device hears of it.
    PassDown,
    /// Mappings go.
    NoPassDown,
    /// Not supported.
    Ignore,
}

/// The options of a pool; they may change when a table is loaded again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Options {
    pub skip_zeroing: bool,
    pub discards: Discards,
    pub read_only: bool,
    pub error_if_full: bool,
    timeout_seconds: u64,
    /// How full, in percent, data and metadata may be before a warning.
    pub marks_percent: [u64; 2],
    /// How full they may be before a critical warning.
    pub critical_percent: [u64; 2],
    pub detect: DetectZeroes,
}

impl Options {
    /// How long a write waits for space; none: for ever.
    pub fn no_space_timeout(&self) -> Option<Duration> {
        (self.timeout_seconds > 0).then(|| Duration::from_secs(self.timeout_seconds))
    }

    fn of(args: &Args) -> Options {
        let discards = match (args.has(IGNORE_DISCARD), args.has(NO_PASSDOWN)) {
            (true, _) => Discards::Ignore,
            (false, true) => Discards::NoPassDown,
            (false, false) => Discards::PassDown,
        };
        let detect = args.word(DETECT).and_then(DetectZeroes::of_word);
        Options {
            skip_zeroing: args.has(SKIP_ZEROING),
            discards,
            read_only: args.has(READ_ONLY),
            error_if_full: args.has(ERROR_IF_FULL),
            timeout_seconds: args.number(TIMEOUT),
            marks_percent: [DATA_MARK, METADATA_MARK].map(|mark| args.number(mark)),
            critical_percent: [DATA_CRITICAL, METADATA_CRITICAL].map(|mark| args.number(mark)),
            detect: detect.unwrap_or(DetectZeroes::Off),
        }
    }
}

/// A parsed line of `thin-pool` with its devices.
pub(super) struct PoolConfig {
    pub metadata: Device,
    pub data: Device,
    pub block_sectors: u64,
    pub low_water_blocks: u64,
    pub options: Options,
    /// How many data blocks the line is long.
    pub data_blocks: u64,
    args: Args,
}

impl PoolConfig {
    /// Parses the words after `thin-pool` and opens the devices.
    pub fn parse(ctor: &Ctor<'_>) -> Result<PoolConfig, ConfigError> {
        let mut args = Args::parse(&POOL_SPEC, ctor)?;
        let block_sectors = args.number("block_sectors");
        if !block_sectors.is_multiple_of(BLOCK_SECTORS_MIN) {
            let expected = "a multiple of 128 sectors (Invalid block size)";
            return Err(args.refuse("block_sectors", block_sectors, expected));
        }
        args.set_flag(READ_ONLY, args.has(READ_ONLY) || ctor.read_only);
        args.set_flag(NO_PASSDOWN, args.has(NO_PASSDOWN) && !args.has(IGNORE_DISCARD));
        let config = PoolConfig {
            metadata: args.device("metadata"),
            data: args.device("data"),
            block_sectors,
            low_water_blocks: args.number("low_water_blocks"),
            options: Options::of(&args),
            data_blocks: ctor.len.0 / block_sectors,
            args,
        };
        config.check(ctor)?;
        Ok(config)
    }

    fn check(&self, ctor: &Ctor<'_>) -> Result<(), ConfigError> {
        let refuse = |device: &Device, field: &str, found: String, expected: &str| {
            Err(ConfigError::argument(&device.argument, field, found, expected))
        };
        if std::sync::Arc::ptr_eq(&self.metadata.disk, &self.data.disk) {
            let found = "the data device itself".to_owned();
            return refuse(&self.metadata, "metadata", found, "another device");
        }
        if ctor.start.0 != 0 {
            let expected = "0: a pool is the only target of its table";
            return refuse(&self.data, "start", ctor.start.0.to_string(), expected);
        }
        let size = self.data.disk.sectors();
        if ctor.len > size {
            let expected = format!("at least the length of the table line, {} sectors", ctor.len);
            return refuse(&self.data, "size", format!("{size} sectors"), &expected);
        }
        if self.data_blocks == 0 {
            let expected = format!("at least one data block, {} sectors", self.block_sectors);
            return refuse(&self.data, "length", format!("{} sectors", ctor.len), &expected);
        }
        if self.options.read_only {
            return Ok(());
        }
        self.metadata.refuse_if_read_only("metadata")?;
        self.data.refuse_read_only("data", SectorRange::new(Sector(0), ctor.len))
    }

    /// The arguments as they are now. A message may have changed how zeros are handled.
    pub fn now(&self, detect: DetectZeroes) -> Args {
        let mut args = self.args.clone();
        if detect != self.options.detect {
            args.set_word(DETECT, detect.word());
        }
        args
    }

    /// The length of a data block.
    pub fn block(&self) -> SectorCount {
        SectorCount(self.block_sectors)
    }
}

/// A parsed line of `thin`.
pub(super) struct ThinConfig {
    pub pool: Device,
    pub id: u32,
    pub origin: Option<Device>,
    args: Args,
}

impl ThinConfig {
    /// Parses the words after `thin`; the pool must be a volume of this server.
    pub fn parse(ctor: &Ctor<'_>) -> Result<ThinConfig, ConfigError> {
        let args = Args::parse(&THIN_SPEC, ctor)?;
        let pool = args.device("pool");
        if pool.disk.mapped().is_none() {
            let found = format!("'{}'", pool.argument);
            return Err(args.refuse("pool", found, "a volume with a thin-pool, as @NAME"));
        }
        let origin = args.optional_device("origin");
        if let Some(origin) = &origin
            && std::sync::Arc::ptr_eq(&origin.disk, &pool.disk)
        {
            let expected = "another device than the pool";
            return Err(ConfigError::argument(&origin.argument, "origin", "the pool", expected));
        }
        Ok(ThinConfig { pool, id: args.number("id") as u32, origin, args })
    }

    /// The words after the target's name, as the kernel prints them.
    pub fn print(&self) -> String {
        self.args.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_block::{Events, Registry};
    use cairn_sim::{DriveOptions, Image, SimDrive, SimOpener};
    use std::sync::Arc;

    fn with_ctor<R>(start: u64, len: u64, line: &str, test: impl FnOnce(&Ctor<'_>) -> R) -> R {
        let drive = |name: &str, sectors: u64| {
            let image = Image::new(SectorCount(sectors));
            Arc::new(SimDrive::new(DriveOptions::named(name), image))
        };
        let opener = SimOpener::new()
            .with("/m", drive("/m", 4096))
            .with("/d", drive("/d", 1 << 22))
            .with("/o", drive("/o", 4096));
        let registry = Registry::new(Box::new(opener));
        registry.create_volume("pool").unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        test(&Ctor {
            start: Sector(start),
            len: SectorCount(len),
            args: &words,
            registry: &registry,
            events: &Events::default(),
            failures: &Default::default(),
            read_only: false,
        })
    }

    fn pool(line: &str) -> Result<PoolConfig, String> {
        with_ctor(0, 1 << 20, line, |ctor| PoolConfig::parse(ctor).map_err(|e| e.to_string()))
    }

    fn thin(line: &str) -> Result<ThinConfig, String> {
        with_ctor(0, 1 << 20, line, |ctor| ThinConfig::parse(ctor).map_err(|e| e.to_string()))
    }

    #[test]
    fn pool_lines_print_as_the_kernel_prints_them() {
        for (line, printed) in [
            ("/m /d 128 0", "/m /d 128 0 0"),
            ("/m /d 384 7 0", "/m /d 384 7 0"),
            ("/m /d 128 0 1 READ_ONLY", "/m /d 128 0 1 read_only"),
            ("/m /d 128 0 2 no_discard_passdown ignore_discard", "/m /d 128 0 1 ignore_discard"),
            (
                "/m /d 128 0 4 error_if_no_space read_only no_discard_passdown skip_block_zeroing",
                "/m /d 128 0 4 skip_block_zeroing no_discard_passdown read_only error_if_no_space",
            ),
            (
                "/m /d 128 5 9 detect_zeroes UNMAP data_mark 60 metadata_mark 100 \
                 no_space_timeout 3 error_if_no_space",
                "/m /d 128 5 9 error_if_no_space no_space_timeout 3 data_mark 60 \
                 metadata_mark 100 detect_zeroes unmap",
            ),
        ] {
            let print = |line| {
                let config = pool(line).unwrap();
                config.now(config.options.detect).to_string()
            };
            assert_eq!((print(line).as_str(), print(printed).as_str()), (printed, printed));
        }
    }

    #[test]
    fn what_a_message_changed_is_printed() {
        for (line, detect, printed) in [
            ("/m /d 128 0", DetectZeroes::Unmap, "/m /d 128 0 2 detect_zeroes unmap"),
            ("/m /d 128 0", DetectZeroes::Off, "/m /d 128 0 0"),
            (
                "/m /d 128 0 2 detect_zeroes unmap",
                DetectZeroes::Off,
                "/m /d 128 0 2 detect_zeroes off",
            ),
        ] {
            assert_eq!(pool(line).unwrap().now(detect).to_string(), printed);
        }
    }

    #[test]
    fn the_kernel_is_not_told_our_own_words() {
        for (line, kernels) in [
            ("/m /d 128 0 0", "/m /d 128 0 0"),
            ("/m /d 128 0 2 detect_zeroes unmap", "/m /d 128 0 0"),
            ("/m /d 128 0 5 read_only data_mark 60 no_space_timeout 3", "/m /d 128 0 1 read_only"),
        ] {
            assert_eq!(POOL_SPEC.kernel_words(line), kernels);
        }
    }

    #[test]
    fn what_is_not_said_has_the_kernels_defaults() {
        let options = pool("/m /d 128 0").unwrap().options;
        assert_eq!(options.no_space_timeout(), Some(Duration::from_secs(60)));
        assert_eq!((options.marks_percent, options.critical_percent), ([75, 85], [95, 95]));
        assert_eq!((options.discards, options.detect), (Discards::PassDown, DetectZeroes::Off));
        assert!(!options.skip_zeroing && !options.read_only && !options.error_if_full);
        let forever = pool("/m /d 128 0 2 no_space_timeout 0").unwrap().options;
        assert_eq!(forever.no_space_timeout(), None);
    }

    #[test]
    fn wrong_pool_lines_are_named_with_what_was_expected() {
        for (line, part) in [
            ("/m", "data: found nothing"),
            ("/m /m 128 0", "metadata: found the data device itself"),
            ("/m /d 64 0", "block_sectors: found '64'"),
            ("/m /d 129 0", "block_sectors: found 129, expected a multiple of 128"),
            ("/m /d 4194304 0", "block_sectors: found '4194304'"),
            ("/m /d 128", "low_water_blocks: found nothing"),
            ("/m /d 128 -1", "low_water_blocks: found '-1'"),
            ("/m /d 128 0 1", "#features: found 1 with 0 words"),
            ("/m /d 128 0 1 shiny", "option: found 'shiny'"),
            ("/m /d 128 0 2 detect_zeroes on", "detect_zeroes: found 'on'"),
            ("/m /d 128 0 2 data_mark 0", "data_mark: found '0'"),
            ("/m /d 128 0 0 more", "trailing words: found 'more'"),
        ] {
            let error = pool(line).err().expect(line);
            assert!(error.contains(part), "{line}: {error}");
        }
        let refuse = |start, len| {
            let parsed = with_ctor(start, len, "/m /d 128 0", PoolConfig::parse);
            parsed.err().expect("refused").to_string()
        };
        assert!(refuse(8, 1024).contains("start: found 8, expected 0"));
        assert!(refuse(0, 100).contains("length: found 100 sectors"));
        assert!(refuse(0, 1 << 23).contains("size: found 4194304 sectors"));
    }

    #[test]
    fn thin_lines_print_as_the_kernel_prints_them() {
        for line in ["@pool 0", "@pool 16777215", "@pool 7 /o"] {
            assert_eq!(thin(line).unwrap().print(), line);
        }
        for (line, part) in [
            ("/o 0", "pool: found '/o', expected a volume with a thin-pool"),
            ("@other 0", "there is no volume of this name"),
            ("@pool", "id: found nothing"),
            ("@pool 16777216", "id: found '16777216', expected a number from 0 to 16777215"),
            ("@pool 0 @pool", "origin: found the pool"),
            ("@pool 0 /o more", "trailing words: found 'more'"),
        ] {
            let error = thin(line).err().expect(line);
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}

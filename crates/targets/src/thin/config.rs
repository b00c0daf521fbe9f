//! The table lines of `thin-pool` and `thin`: the words, their order, and how they are printed.

use std::time::Duration;

use cairn_block::{ConfigError, Ctor, SectorCount};
use cairn_format::thin::DeviceId;

use crate::args::{Args, Device, OptionSpec, Spec};

/// What the parser and the manual of `thin-pool` know.
pub const POOL_SPEC: Spec = Spec {
    options: OPTIONS,
    status_fields: super::status::POOL_FIELDS,
    messages: super::message::MESSAGES,
};

/// What the parser and the manual of `thin` know.
pub const THIN_SPEC: Spec =
    Spec { options: &[], status_fields: super::status::THIN_FIELDS, messages: &[] };

const SKIP_ZEROING: &str = "skip_block_zeroing";
const IGNORE_DISCARD: &str = "ignore_discard";
const NO_PASSDOWN: &str = "no_discard_passdown";
const READ_ONLY: &str = "read_only";
const ERROR_IF_FULL: &str = "error_if_no_space";
const TIMEOUT: &str = "no_space_timeout";
const DATA_MARK: &str = "data_mark";
const METADATA_MARK: &str = "metadata_mark";
const DETECT: &str = "detect_zeroes";

const OPTIONS: &[OptionSpec] = &[
    OptionSpec::new(SKIP_ZEROING, &[]),
    OptionSpec::new(IGNORE_DISCARD, &[]),
    OptionSpec::new(NO_PASSDOWN, &[]),
    OptionSpec::new(READ_ONLY, &[]),
    OptionSpec::new(ERROR_IF_FULL, &[]),
    OptionSpec::new(TIMEOUT, &["seconds"]),
    OptionSpec::new(DATA_MARK, &["percent"]),
    OptionSpec::new(METADATA_MARK, &["percent"]),
    OptionSpec::new(DETECT, &["mode"]),
];

/// Words of the options that only cairn knows, each with one value.
const OWN_OPTIONS: &[&str] = &[TIMEOUT, DATA_MARK, METADATA_MARK, DETECT];

/// Most words of options: the kernel's four and our four pairs.
const OPTION_WORDS_MAX: usize = 4 + 2 * OWN_OPTIONS.len();

/// Smallest and largest data block, in sectors; also what it is a multiple of.
pub(super) const BLOCK_SECTORS_MIN: u64 = 128;
const BLOCK_SECTORS_MAX: u64 = 2_097_152;

const TIMEOUT_DEFAULT: Duration = Duration::from_secs(60);
const DATA_MARK_DEFAULT: u64 = 75;
const METADATA_MARK_DEFAULT: u64 = 85;

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
    timeout_seconds: Option<u64>,
    data_mark: Option<u64>,
    metadata_mark: Option<u64>,
    pub detect: Option<DetectZeroes>,
}

impl Options {
    /// How long a write waits for space; none: for ever.
    pub fn no_space_timeout(&self) -> Option<Duration> {
        match self.timeout_seconds {
            Some(0) => None,
            Some(seconds) => Some(Duration::from_secs(seconds)),
            None => Some(TIMEOUT_DEFAULT),
        }
    }

    /// How full, in percent, data and metadata may be before a warning.
    pub fn marks_percent(&self) -> [u64; 2] {
        [
            self.data_mark.unwrap_or(DATA_MARK_DEFAULT),
            self.metadata_mark.unwrap_or(METADATA_MARK_DEFAULT),
        ]
    }

    fn none() -> Options {
        Options {
            skip_zeroing: false,
            discards: Discards::PassDown,
            read_only: false,
            error_if_full: false,
            timeout_seconds: None,
            data_mark: None,
            metadata_mark: None,
            detect: None,
        }
    }

    fn take(&mut self, word: &str, group: &mut Args<'_>) -> Result<(), ConfigError> {
        match word {
            SKIP_ZEROING => self.skip_zeroing = true,
            IGNORE_DISCARD => self.discards = Discards::Ignore,
            NO_PASSDOWN if self.discards == Discards::PassDown => {
                self.discards = Discards::NoPassDown;
            }
            NO_PASSDOWN => (),
            READ_ONLY => self.read_only = true,
            ERROR_IF_FULL => self.error_if_full = true,
            TIMEOUT => self.timeout_seconds = Some(group.number(TIMEOUT, 0..=u64::from(u32::MAX))?),
            DATA_MARK => self.data_mark = Some(group.number(DATA_MARK, 1..=100)?),
            METADATA_MARK => self.metadata_mark = Some(group.number(METADATA_MARK, 1..=100)?),
            DETECT => {
                let modes = [DetectZeroes::Off, DetectZeroes::Unmap];
                let chosen = group.choice(DETECT, &modes.map(DetectZeroes::word))?;
                self.detect = Some(modes[chosen]);
            }
            _ => unreachable!("the reader hands out words of the spec only"),
        }
        Ok(())
    }

    fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        let mut flag = |word: &str, set: bool| words.extend(set.then(|| word.to_owned()));
        flag(SKIP_ZEROING, self.skip_zeroing);
        flag(IGNORE_DISCARD, self.discards == Discards::Ignore);
        flag(NO_PASSDOWN, self.discards == Discards::NoPassDown);
        flag(READ_ONLY, self.read_only);
        flag(ERROR_IF_FULL, self.error_if_full);
        let numbers = [
            (TIMEOUT, self.timeout_seconds),
            (DATA_MARK, self.data_mark),
            (METADATA_MARK, self.metadata_mark),
        ];
        for (word, value) in numbers {
            words.extend(value.into_iter().flat_map(|value| [word.to_owned(), value.to_string()]));
        }
        let detect = self.detect.into_iter();
        words.extend(detect.flat_map(|mode| [DETECT, mode.word()].map(str::to_owned)));
        words
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
}

impl PoolConfig {
    /// Parses the words after `thin-pool` and opens the devices.
    pub fn parse(ctor: &Ctor<'_>) -> Result<PoolConfig, ConfigError> {
        let mut args = Args::new("thin-pool", ctor);
        let (metadata, data) = (args.device("metadata")?, args.device("data")?);
        let block_sectors = args.number("block_sectors", BLOCK_SECTORS_MIN..=BLOCK_SECTORS_MAX)?;
        if !block_sectors.is_multiple_of(BLOCK_SECTORS_MIN) {
            let expected = "a multiple of 128 sectors (Invalid block size)";
            return Err(args.refuse("block_sectors", block_sectors, expected));
        }
        let low_water_blocks = args.number("low_water_blocks", 0..=u64::MAX)?;
        let mut options = Options::none();
        let mut group = args.group("#features", OPTION_WORDS_MAX)?;
        while let Some(word) = group.option(OPTIONS)? {
            options.take(word, &mut group)?;
        }
        args.finish()?;
        options.read_only |= ctor.read_only;
        let data_blocks = ctor.len.0 / block_sectors;
        let config =
            PoolConfig { metadata, data, block_sectors, low_water_blocks, options, data_blocks };
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
        Ok(())
    }

    /// The words after the target's name, as the kernel prints them.
    pub fn print(&self) -> String {
        let (metadata, data) = (&self.metadata.argument, &self.data.argument);
        let words = self.options.words();
        let mut text =
            format!("{metadata} {data} {} {}", self.block_sectors, self.low_water_blocks);
        // The kernel prints the count even if it is zero.
        text.push_str(&format!(" {}", words.len()));
        for word in words {
            text.push(' ');
            text.push_str(&word);
        }
        text
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
}

impl ThinConfig {
    /// Parses the words after `thin`; the pool must be a volume of this server.
    pub fn parse(ctor: &Ctor<'_>) -> Result<ThinConfig, ConfigError> {
        let mut args = Args::new("thin", ctor);
        let pool = args.device("pool")?;
        if pool.disk.mapped().is_none() {
            let found = format!("'{}'", pool.argument);
            return Err(args.refuse("pool", found, "a volume with a thin-pool, as @NAME"));
        }
        let id = args.number("id", 0..=DeviceId::MAX.key())? as u32;
        let origin = if args.left() > 0 { Some(args.device("origin")?) } else { None };
        args.finish()?;
        if let Some(origin) = &origin
            && std::sync::Arc::ptr_eq(&origin.disk, &pool.disk)
        {
            let expected = "another device than the pool";
            return Err(ConfigError::argument(&origin.argument, "origin", "the pool", expected));
        }
        Ok(ThinConfig { pool, id, origin })
    }

    /// The words after the target's name, as the kernel prints them.
    pub fn print(&self) -> String {
        let (pool, id) = (&self.pool.argument, self.id);
        match &self.origin {
            Some(origin) => format!("{pool} {id} {}", origin.argument),
            None => format!("{pool} {id}"),
        }
    }
}

/// The words of a line of `thin-pool` as the kernel takes them: without what only cairn knows.
#[must_use]
pub fn kernel_words(params: &str) -> String {
    let words: Vec<&str> = params.split(' ').collect();
    let (fixed, options) = words.split_at(words.len().min(5));
    let mut kept = Vec::new();
    let mut rest = options.iter();
    while let Some(word) = rest.next() {
        if OWN_OPTIONS.contains(word) {
            rest.next();
        } else {
            kept.push(*word);
        }
    }
    let Some(fixed) = fixed.get(..4) else { return params.to_owned() };
    let mut text = format!("{} {}", fixed.join(" "), kept.len());
    for word in kept {
        text.push(' ');
        text.push_str(word);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_block::{Events, Registry, Sector};
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
            assert_eq!(pool(line).unwrap().print(), printed);
            assert_eq!(pool(printed).unwrap().print(), printed);
        }
    }

    #[test]
    fn the_kernel_is_not_told_our_own_words() {
        for (line, kernels) in [
            ("/m /d 128 0 0", "/m /d 128 0 0"),
            ("/m /d 128 0 2 detect_zeroes unmap", "/m /d 128 0 0"),
            ("/m /d 128 0 5 read_only data_mark 60 no_space_timeout 3", "/m /d 128 0 1 read_only"),
        ] {
            assert_eq!(kernel_words(line), kernels);
        }
    }

    #[test]
    fn what_is_not_said_has_the_kernels_defaults() {
        let options = pool("/m /d 128 0").unwrap().options;
        assert_eq!(options.no_space_timeout(), Some(Duration::from_secs(60)));
        assert_eq!(options.marks_percent(), [75, 85]);
        assert_eq!(options, Options::none());
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

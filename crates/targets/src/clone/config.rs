//! The table line of a clone: the words, their order, and how they are printed.

use cairn_block::{ConfigError, ConfigKind, Ctor, Sector, SectorRange};
use cairn_format::clone::{REGION_SECTORS_MAX, RegionSize};

use crate::args::{Args, Device};
use crate::spec::{Arg, Group, Opt, Span, Spec, Use};

/// The options, and the words of the status line and of messages.
pub(super) const NO_HYDRATION: &str = "no_hydration";
pub(super) const NO_PASSDOWN: &str = "no_discard_passdown";
pub(super) const THRESHOLD: &str = "hydration_threshold";
pub(super) const BATCH: &str = "hydration_batch_size";

const fn regions() -> Arg {
    Arg::number("regions", 0, u32::MAX as u64, "")
}

const FEATURES: &[Opt] = &[
    Opt::new(NO_HYDRATION, &[], "does not hydrate in the background until a message says so"),
    Opt::new(NO_PASSDOWN, &[], "discards do not go to the destination"),
];

const CORE: &[Opt] = &[
    Opt::new(THRESHOLD, &[regions()], "most regions that are copied in the background at a time")
        .default(1),
    Opt::new(BATCH, &[regions()], "most regions that are copied together").default(1),
];

/// What `clone` declares.
pub const SPEC: Spec = Spec {
    group: Group::features(2, false, FEATURES),
    second: Group {
        count: "#core args",
        item: "core arg",
        most: 4,
        needed: false,
        prints_zero: false,
        options: CORE,
    },
    status_fields: super::status::STATUS_FIELDS,
    messages: super::status::MESSAGES,
    ..Spec::plain(
        "clone",
        [1, 0, 0],
        &[
            Arg::device("metadata", Use::Owns(Span::Whole), "keeps which regions are hydrated"),
            Arg::device("destination", Use::Owns(Span::Whole), "becomes the copy").gives_length(),
            Arg::device("source", Use::Reads, "the device that is copied").gives_length(),
            Arg::number("region_size", 8, REGION_SECTORS_MAX, "in sectors, a power of two"),
        ],
    )
};

/// A parsed table line with its devices.
pub(super) struct Config {
    /// The name of the volume, for the log.
    pub volume: String,
    pub metadata: Device,
    pub destination: Device,
    pub source: Device,
    pub region_size: RegionSize,
    /// Sectors of the line.
    pub sectors: u64,
    pub args: Args,
}

impl Config {
    /// Parses the words after the target's name and opens the devices.
    pub fn parse(ctor: &Ctor<'_>) -> Result<Config, ConfigError> {
        let args = Args::parse(&SPEC, ctor)?;
        let region_size = RegionSize::new(args.number("region_size")).map_err(|error| {
            ConfigError::new(ConfigKind::Argument, SPEC.name, error.to_string())
        })?;
        let config = Config {
            volume: ctor.events.volume().to_owned(),
            metadata: args.device("metadata"),
            destination: args.device("destination"),
            source: args.device("source"),
            region_size,
            sectors: ctor.len.0,
            args,
        };
        config.check_devices(ctor)?;
        Ok(config)
    }

    fn check_devices(&self, ctor: &Ctor<'_>) -> Result<(), ConfigError> {
        let Config { metadata, destination, source, .. } = self;
        let pairs = [(metadata, destination), (metadata, source), (destination, source)];
        for (one, other) in pairs {
            if std::sync::Arc::ptr_eq(&one.disk, &other.disk) {
                let found = format!("'{}' twice", one.argument);
                return Err(self.args.refuse("devices", found, "three different devices"));
            }
        }
        for device in [destination, source] {
            let size = device.disk.sectors();
            if size < ctor.len {
                let expected = format!("at least the target's length, {} sectors", ctor.len);
                let found = format!("{size} sectors");
                return Err(ConfigError::argument(&device.argument, "size", found, &expected));
            }
            let block = device.disk.limits().logical_sectors();
            if self.region_size.sectors() < block.0 {
                let expected = format!("at least the logical block size, {block} sectors");
                let found = format!("{} sectors", self.region_size.sectors());
                let field = "region_size";
                return Err(ConfigError::argument(&device.argument, field, found, &expected));
            }
        }
        if ctor.read_only {
            return Ok(());
        }
        metadata.refuse_if_read_only("metadata")?;
        destination.refuse_read_only("destination", SectorRange::new(Sector(0), ctor.len))
    }
}

/// What messages change.
pub(super) struct Settings {
    pub args: Args,
    pub hydrates: bool,
    /// Most regions that hydration has in flight.
    pub threshold: u64,
    /// Most regions of one copy.
    pub batch: u64,
}

impl Settings {
    /// As the table line says.
    pub fn of(args: &Args) -> Settings {
        Settings {
            hydrates: !args.has(NO_HYDRATION),
            threshold: args.number(THRESHOLD),
            batch: args.number(BATCH),
            args: args.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::with_ctor;

    fn parse(line: &str) -> Result<String, String> {
        with_ctor(line, |ctor| {
            let config = Config::parse(ctor).map_err(|error| error.to_string())?;
            Ok(config.args.to_string())
        })
    }

    #[test]
    fn lines_print_as_the_kernel_prints_them() {
        for (line, printed) in [
            ("/m /c /o 8", "/m /c /o 8"),
            ("/m /c /o 8 1 No_Hydration", "/m /c /o 8 1 no_hydration"),
            (
                "/m /c /o 16 2 no_discard_passdown no_hydration",
                "/m /c /o 16 2 no_hydration no_discard_passdown",
            ),
            ("/m /c /o 8 0 2 HYDRATION_batch_size 3", "/m /c /o 8 0 2 hydration_batch_size 3"),
            (
                "/m /c /o 8 1 no_hydration 4 hydration_batch_size 3 hydration_threshold 2",
                "/m /c /o 8 1 no_hydration 4 hydration_threshold 2 hydration_batch_size 3",
            ),
            ("/m /c /o 8 0 0", "/m /c /o 8"),
        ] {
            assert_eq!(parse(line).unwrap(), printed);
            assert_eq!(parse(printed).unwrap(), printed);
        }
    }

    #[test]
    fn wrong_words_are_named_with_what_was_expected() {
        for (line, part) in [
            ("/m /c /o", "region_size: found nothing"),
            ("/m /c /o 4", "region_size: found '4', expected a number from 8 to 2097152"),
            ("/m /c /o 24", "region_size: found 24 sectors, expected a power of two"),
            ("/m /c /o 4194304", "region_size: found '4194304'"),
            ("/m /c /o 8 1 x", "option: found 'x', expected one of no_hydration, no_discard"),
            ("/m /c /o 8 1 hydration_threshold", "option: found 'hydration_threshold'"),
            ("/m /c /o 8 0 1 no_hydration", "option: found 'no_hydration', expected one of hydr"),
            ("/m /c /o 8 0 1 hydration_threshold", "hydration_threshold: found 0 words"),
            ("/m /c /o 8 3 a b c", "#features: found '3', expected a number from 0 to 2"),
            ("/m /c /o 8 0 2 hydration_threshold x", "hydration_threshold: found 'x'"),
            ("/m /c /o 8 0 0 more", "trailing words: found 'more'"),
            ("/m /m /o 8", "devices: found '/m' twice, expected three different devices"),
        ] {
            let error = parse(line).expect_err(line);
            assert!(error.contains(part), "{line}: {error}");
        }
    }
}

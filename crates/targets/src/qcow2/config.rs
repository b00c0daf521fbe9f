//! The table line of an image.

use cairn_block::{ConfigError, Ctor, Env, Registry, SectorCount};

use super::image::Image;
use super::load;
use crate::args::{Args, Device};
use crate::spec::{Arg, Span, Spec, Use};

/// What `qcow2` declares.
pub const SPEC: Spec = Spec {
    own: true,
    status_fields: super::status::STATUS_FIELDS,
    measure: Some(|env, registry, words, read_only| {
        Box::pin(measure(env, registry, words, read_only))
    }),
    ..Spec::plain(
        "qcow2",
        [1, 0, 0],
        &[
            Arg::device("image", Use::Owns(Span::Whole), "keeps the image; a file grows"),
            Arg::device("backing", Use::Reads, "shows where the image has nothing").or_none(),
        ],
    )
};

/// How long a line of length `N` is: what the header says.
async fn measure(
    env: &Env,
    registry: &Registry,
    words: &[String],
    read_only: bool,
) -> Result<SectorCount, ConfigError> {
    let (words, split) = SPEC.split(words.iter().map(String::as_str));
    split?;
    let Some(argument) = words.argument("image") else {
        let expected = "an image to take its length from";
        return Err(ConfigError::argument(SPEC.name, "length", "no number", expected));
    };
    let disk = registry.open_on(env, argument, read_only).await?;
    disk.refresh()?;
    let device = Device { argument: argument.to_owned(), disk };
    let found = load::header(env, &device, &Image::new(device.disk.clone())).await?;
    Ok(SectorCount::of_bytes(found.header.size))
}

/// A parsed table line with its devices.
pub(super) struct Config {
    /// The name of the volume, for the log.
    pub volume: String,
    pub image: Device,
    pub backing: Option<Device>,
    /// Sectors of the line.
    pub sectors: u64,
    pub args: Args,
}

impl Config {
    /// Parses the words after the target's name and opens the devices.
    pub fn parse(ctor: &Ctor<'_>) -> Result<Config, ConfigError> {
        let args = Args::parse(&SPEC, ctor)?;
        let config = Config {
            volume: ctor.events.volume().to_owned(),
            image: args.device("image"),
            backing: args.optional_device("backing"),
            sectors: ctor.len.0,
            args,
        };
        if !ctor.read_only {
            config.image.refuse_if_read_only("image")?;
        }
        Ok(config)
    }

    /// The device of the image.
    pub fn device(&self) -> Image {
        Image::new(self.image.disk.clone())
    }
}

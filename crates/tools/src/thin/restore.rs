//! `cairn restore`: builds new metadata from XML.
//!
//! The text is read once and the metadata is written as the text arrives: it may come from a pipe
//! and be larger than memory.

use cairn_block::{ConfigError, ConfigKind};
use cairn_format::thin::build::{BuildError, Builder, Refusal};
use cairn_format::thin::stream::{Pool, Run, Sink};
use cairn_format::thin::xml::{Reader, XmlError};
use cairn_format::thin::{DeviceDetails, DeviceId, Superblock};
use cairn_outcome::failure::{Outcome, wrong};
use cairn_outcome::{exit, signals, stdout};
use serde_json::json;

use super::output::{Leave, Output};
use super::superblock_json;
use super::text::Text;
use crate::args::RestoreArgs;
use crate::source;

/// Bytes of text in one read.
const PIECE_BYTES: usize = 1 << 16;

/// Runs the verb.
///
/// # Errors
/// The XML is wrong, or something cannot be read or written.
pub fn run(args: &RestoreArgs) -> Outcome<u8> {
    let (_, stop) = signals::watch()?;
    let mut text = Text::open(&args.xml, &stop)?;
    if source::is_at(&text.file, &args.output) {
        return Err(wrong(text.name, "--output", "the XML itself", "another file"));
    }
    let (xml, to) = (args.xml.display(), args.output.display());
    let command = format!("cairn restore {xml} --output {to}");
    let leave = Leave { yes: args.yes, discard_dirty: args.discard_dirty };
    let mut output = Output::open(&args.output, leave, &command, &stop)?;
    let superblock = restore(&mut text, args, &mut output)?;
    output.finish(&superblock)?;
    if args.json {
        return stdout::print_json(&json!({
            "output": output.name(),
            "superblock": superblock_json(&superblock),
            "metadata_used": superblock.metadata_space_map.allocated,
            "data_used": superblock.data_space_map.allocated,
        }));
    }
    stdout::print(&format!(
        "{}: restored: {} of {} data blocks and {} of {} metadata blocks in use\n",
        output.name(),
        superblock.data_space_map.allocated,
        superblock.data_space_map.blocks,
        superblock.metadata_space_map.allocated,
        superblock.metadata_space_map.blocks
    ))?;
    Ok(exit::OK)
}

fn restore(
    text: &mut Text<'_>,
    args: &RestoreArgs,
    output: &mut Output<'_>,
) -> Outcome<Superblock> {
    let (from, to) = (text.name.clone(), output.name().to_owned());
    let (output, data_blocks) = (Some(output), args.data_blocks);
    let mut reader = Reader::new(Restoring { output, builder: None, data_blocks });
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match text.read(&mut piece)? {
            0 => break,
            len => reader.feed(&piece[..len]).map_err(|error| told(&from, &to, error))?,
        }
    }
    let done = reader.finish().map_err(|error| told(&from, &to, error))?;
    let builder = done.builder.expect("the reader ends after a pool only");
    builder.finish().map_err(|error| built(&from, &to, error))
}

fn told(from: &str, to: &str, error: XmlError<BuildError<ConfigError>>) -> ConfigError {
    match error {
        XmlError::Broken { line, what } => {
            ConfigError::new(ConfigKind::Argument, from, format!("line {line}: {what}"))
        }
        XmlError::Refused { line, error } => built(&format!("{from}, line {line}"), to, error),
    }
}

/// A refusal of the builder, as an error about the input or the output.
pub fn built(from: &str, to: &str, error: BuildError<ConfigError>) -> ConfigError {
    let refusal = match error {
        BuildError::Write(error) => return error,
        BuildError::Refused(refusal) => refusal,
    };
    let (name, hint) = match refusal {
        Refusal::NoRoom { .. } => (to, ""),
        // The XML of a metadata snapshot says 0.
        Refusal::Outside { blocks: 0, .. } => (from, "; --data-blocks says how many there are"),
        _ => (from, ""),
    };
    ConfigError::new(ConfigKind::Argument, name, format!("{refusal}{hint}"))
}

/// Builds a pool; the first line of the text says how.
struct Restoring<'a, 'o> {
    /// Moved to the builder when it is made.
    output: Option<&'a mut Output<'o>>,
    builder: Option<Builder<&'a mut Output<'o>>>,
    /// Data blocks that the user gave; they replace those of the text.
    data_blocks: Option<u64>,
}

type Built<T> = Result<T, BuildError<ConfigError>>;

impl<'a, 'o> Restoring<'a, 'o> {
    fn builder(&mut self) -> &mut Builder<&'a mut Output<'o>> {
        self.builder.as_mut().expect("the reader gives the pool first")
    }
}

impl Sink for Restoring<'_, '_> {
    type Error = BuildError<ConfigError>;

    fn pool(&mut self, pool: &Pool) -> Built<()> {
        let pool = Pool { data_blocks: self.data_blocks.unwrap_or(pool.data_blocks), ..*pool };
        let output = self.output.take().expect("the reader gives one pool");
        let room = output.room(pool.data_blocks);
        self.builder = Some(Builder::new(output, room, pool)?);
        Ok(())
    }

    fn device(&mut self, id: DeviceId, details: &DeviceDetails) -> Built<()> {
        Ok(self.builder().begin_device(id, *details)?)
    }

    fn run(&mut self, run: Run) -> Built<()> {
        self.builder().add(run)
    }

    fn end_device(&mut self) -> Built<()> {
        self.builder().end_device()
    }

    fn end(&mut self) -> Built<()> {
        Ok(())
    }
}

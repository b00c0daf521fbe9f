//! `cairn restore`: new metadata out of XML.
//!
//! The text is read once, from front to back, and what it says is written as it comes: the text may
//! come out of a pipe, and be larger than memory.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::Path;

use cairn_block::{ConfigError, ConfigKind};
use cairn_format::thin::build::{BuildError, Builder};
use cairn_format::thin::stream::{Pool, Run, Sink};
use cairn_format::thin::xml::{Reader, XmlError};
use cairn_format::thin::{DeviceDetails, DeviceId, Superblock};
use serde_json::json;

use super::output::Output;
use super::superblock_json;
use crate::cli::RestoreArgs;
use crate::exit;
use crate::failure::{Outcome, system, wrong};
use crate::offline::source;
use crate::remote;
use crate::signals;

/// Bytes of text at once.
const PIECE_BYTES: usize = 1 << 16;

/// Runs the verb.
///
/// # Errors
/// The XML is wrong, or something cannot be read or written.
pub fn run(args: &RestoreArgs) -> Outcome<u8> {
    let (_, stop) = signals::watch()?;
    let (name, mut text) = open_text(&args.xml)?;
    if source::is_at(&text, &args.output) {
        return Err(wrong(name, "--output", "the XML itself", "another file"));
    }
    let mut output = Output::open(&args.output, args.yes, &stop)?;
    let restored = restore(&name, &mut text, args, &mut output);
    let written = restored.and_then(|superblock| output.finish(&superblock).map(|()| superblock));
    let superblock = match written {
        Ok(superblock) => superblock,
        Err(error) => return Err(output.give_up(error)),
    };
    if args.json {
        return remote::print_json(&json!({
            "output": output.name(),
            "superblock": superblock_json(&superblock),
            "metadata_used": superblock.metadata_space_map.allocated,
            "data_used": superblock.data_space_map.allocated,
        }));
    }
    remote::print(&format!(
        "{}: restored: {} of {} data blocks and {} of {} metadata blocks in use\n",
        output.name(),
        superblock.data_space_map.allocated,
        superblock.data_space_map.blocks,
        superblock.metadata_space_map.allocated,
        superblock.metadata_space_map.blocks
    ))?;
    Ok(exit::OK)
}

/// The XML, and its name: `-` is the standard input.
fn open_text(path: &Path) -> Outcome<(String, File)> {
    let name = path.display().to_string();
    if name == "-" {
        let file = io::stdin().as_fd().try_clone_to_owned();
        let file = file.map_err(|error| system("stdin", "open", error))?;
        return Ok(("stdin".to_owned(), File::from(file)));
    }
    let file = File::open(path).map_err(|error| system(&name, "open", error))?;
    Ok((name, file))
}

fn restore(
    name: &str,
    text: &mut File,
    args: &RestoreArgs,
    output: &mut Output<'_>,
) -> Outcome<Superblock> {
    let (output, data_blocks) = (Some(output), args.data_blocks);
    let mut reader = Reader::new(Restoring { output, builder: None, data_blocks });
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match text.read(&mut piece).map_err(|error| system(name, "read", error))? {
            0 => break,
            len => reader.feed(&piece[..len]).map_err(|error| told(name, error))?,
        }
    }
    let done = reader.finish().map_err(|error| told(name, error))?;
    let builder = done.builder.expect("the reader ends after a pool only");
    builder.finish().map_err(|error| built(name, error))
}

fn told(name: &str, error: XmlError<BuildError<ConfigError>>) -> ConfigError {
    match error {
        XmlError::Broken { line, what } => {
            ConfigError::new(ConfigKind::Argument, name, format!("line {line}: {what}"))
        }
        XmlError::Refused { line, error } => built(&format!("{name}, line {line}"), error),
    }
}

/// Why something cannot be built, as an error about where it came from.
pub fn built(from: &str, error: BuildError<ConfigError>) -> ConfigError {
    match error {
        BuildError::Write(error) => error,
        BuildError::Refused(refusal) => {
            ConfigError::new(ConfigKind::Argument, from, refusal.to_string())
        }
    }
}

/// Builds a pool once its first line has come.
struct Restoring<'a, 'o> {
    /// Until the builder has it.
    output: Option<&'a mut Output<'o>>,
    builder: Option<Builder<&'a mut Output<'o>>>,
    /// What the user knows better than the text.
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

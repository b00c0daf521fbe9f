//! The output of new metadata: a new file, or a device that may be overwritten.
//!
//! Opening writes nothing: if the caller fails before the first write, the device is unchanged.
//! What a crash between two steps leaves:
//! 1. once 1 MiB of blocks is there to write, or all of them, a device that is not blank gets zeros
//!    over its superblock and every signature, then a flush: it is no pool any more, so the old
//!    superblock can never lead to new trees;
//! 2. every block but the superblock, then a flush: still no pool;
//! 3. the superblock, then a flush of file and folder: the new pool.
//!
//! If the last step is not reached, a file that was created here is removed.

use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;

use cairn_backends::LeftLog;
use cairn_block::{ConfigError, ConfigKind};
use cairn_format::thin::build::{Room, WriteBlocks};
use cairn_format::thin::{BLOCK_BYTES, Block, METADATA_BLOCKS_MAX, MetadataBlock, Superblock};
use cairn_outcome::failure::Outcome;
use cairn_outcome::signals::{Event, Unfinished};

use crate::args::DiscardDirty;
use crate::dirty;
use crate::source::{Source, refuse_unless_blank, sync_folder};

/// Bytes of one write.
const PIECE_BYTES: usize = 1 << 20;
/// Fewest metadata blocks of a new file: 2 MiB.
const BLOCKS_MIN: u64 = 512;
/// Bytes of metadata per data block, as the kernel's documentation advises.
const BYTES_PER_DATA_BLOCK: u64 = 48;

/// What the user allows to be lost.
#[derive(Clone, Copy)]
pub struct Leave {
    /// The content of the device.
    pub yes: bool,
    /// The dirty blocks of a cache.
    pub discard_dirty: Option<DiscardDirty>,
}

/// A metadata device being written.
pub struct Output<'a> {
    target: Source,
    path: PathBuf,
    /// Set while a new file is incomplete.
    made: Option<Unfinished>,
    /// Crash logs that are given up before the first write.
    logs: Vec<LeftLog>,
    /// The device must be blanked before the first write.
    is_old: bool,
    /// Consecutive blocks that are not written yet, and the number of the first.
    row: (u64, Vec<u8>),
    stop: &'a Receiver<Event>,
}

impl<'a> Output<'a> {
    /// Creates a file, or takes a device that is blank or may be overwritten. `command` is the
    /// command line that the refusal shows, with `--yes`.
    ///
    /// # Errors
    /// It is not blank, or the system refused.
    pub fn open(
        path: &Path,
        leave: Leave,
        command: &str,
        stop: &'a Receiver<Event>,
    ) -> Outcome<Output<'a>> {
        let (target, made) = match path.exists() {
            true => (Source::write(path)?, None),
            false => {
                let made = Source::create(path, BLOCKS_MIN * BLOCK_BYTES as u64)?;
                (made, Some(Unfinished::file(path)))
            }
        };
        let (logs, is_old) = match made {
            Some(_) => (Vec::new(), false),
            None => judge(&target, leave, command)?,
        };
        let (path, row) = (path.to_owned(), (0, Vec::new()));
        Ok(Output { target, path, made, logs, is_old, row, stop })
    }

    /// The name that the user gave.
    pub fn name(&self) -> &str {
        &self.target.name
    }

    /// How many metadata blocks there can be, for a pool of so many data blocks.
    pub fn room(&self, data_blocks: u64) -> Room {
        let block_bytes = BLOCK_BYTES as u64;
        match self.made {
            None => Room::Fixed(self.target.bytes / block_bytes),
            Some(_) => {
                let bytes = data_blocks.saturating_mul(BYTES_PER_DATA_BLOCK);
                let blocks = bytes.div_ceil(block_bytes);
                Room::AtLeast(blocks.clamp(BLOCKS_MIN, METADATA_BLOCKS_MAX))
            }
        }
    }

    /// Makes the blocks durable, then writes the superblock and makes that durable.
    ///
    /// # Errors
    /// The system refused.
    pub fn finish(&mut self, superblock: &Superblock) -> Outcome<()> {
        self.write_row()?;
        if self.made.is_some() {
            self.target.set_size(superblock.metadata_space_map.blocks * BLOCK_BYTES as u64)?;
        }
        self.target.flush()?;
        self.target.write_at(0, &superblock.encode(MetadataBlock::SUPERBLOCK))?;
        self.target.flush()?;
        if let Some(made) = self.made.take() {
            sync_folder(&self.path)?;
            made.finish();
        }
        Ok(())
    }

    /// The device, for a check of what was written.
    pub fn into_source(self) -> Source {
        self.target
    }

    fn write_row(&mut self) -> Outcome<()> {
        let (first, bytes) = &mut self.row;
        if bytes.is_empty() {
            return Ok(());
        }
        dirty::give_up(&self.target, std::mem::take(&mut self.logs))?;
        if self.is_old {
            self.target.make_blank(0)?;
            self.is_old = false;
        }
        self.target.write_at(*first * BLOCK_BYTES as u64, bytes)?;
        bytes.clear();
        Ok(())
    }
}

/// The crash logs that are given up, and true if the device must be blanked first; refuses one that
/// is not blank without `--yes`.
fn judge(target: &Source, leave: Leave, command: &str) -> Outcome<(Vec<LeftLog>, bool)> {
    let logs = dirty::refuse(target, 0, leave.discard_dirty)?;
    let found = target.judge(0, |_| false)?;
    if !leave.yes {
        let way_on = format!("to lose that: {command} --yes");
        refuse_unless_blank(&target.name, &found, &way_on)?;
    }
    Ok((logs, !found.is_blank()))
}

impl WriteBlocks for Output<'_> {
    type Error = ConfigError;

    fn write(&mut self, at: MetadataBlock, block: &Block) -> Outcome<()> {
        if self.stop.try_recv().is_ok() {
            return Err(ConfigError::new(ConfigKind::System, self.name(), "interrupted"));
        }
        let (first, bytes) = &self.row;
        let goes_on = first + (bytes.len() / BLOCK_BYTES) as u64 == at.0;
        if !goes_on || bytes.len() >= PIECE_BYTES {
            self.write_row()?;
            self.row.0 = at.0;
        }
        self.row.1.extend_from_slice(block);
        Ok(())
    }
}

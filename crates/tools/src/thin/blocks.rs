//! Reads metadata blocks of a device in large pieces; a second thread reads ahead.
//!
//! The wanted blocks are sorted; neighbours are read together. If a piece cannot be read, its
//! blocks are read one by one, so that one bad sector costs one block.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use cairn_block::{ConfigError, ConfigKind};
use cairn_format::thin::{BLOCK_BYTES, Block, MetadataBlock, block, blocks::Blocks};
use cairn_outcome::failure::Outcome;
use cairn_outcome::signals::Event;

use super::progress::Progress;
use crate::source::Source;

/// Blocks in a piece: 1 MiB.
const PIECE_BLOCKS: u64 = 256;
/// Unwanted blocks that may be read to join two pieces.
const GAP_BLOCKS: u64 = 8;
/// Pieces that are read ahead.
const PIECES_AHEAD: usize = 4;
/// With fewer wanted blocks no thread is started.
const THREAD_FROM: usize = 64;

/// The metadata that begins at some byte of a device.
pub struct MetadataDevice<'a> {
    source: &'a Source,
    start: u64,
    count: u64,
    progress: Progress,
    /// Metadata blocks in use, and data blocks.
    used: (u64, u64),
    /// Returns true when reading must stop.
    stop: Option<&'a Receiver<Event>>,
}

/// Consecutive blocks, some of which may be unreadable.
struct Piece {
    first: u64,
    bytes: Vec<u8>,
    /// The blocks that could not be read.
    bad: Vec<u64>,
}

impl<'a> MetadataDevice<'a> {
    /// The metadata that begins at a sector.
    ///
    /// # Errors
    /// The sector lies beyond the end.
    pub fn at(source: &'a Source, start_sector: u64, doing: &'static str) -> Outcome<Self> {
        let count = source.area_bytes(start_sector)? / BLOCK_BYTES as u64;
        let start = source.bytes - source.area_bytes(start_sector)?;
        let progress = Progress::new(doing, "blocks");
        Ok(MetadataDevice { source, start, count, progress, used: (0, 0), stop: None })
    }

    /// Reads stop when `interrupted` returns true.
    pub fn stopped_by(mut self, stop: &'a Receiver<Event>) -> Self {
        self.stop = Some(stop);
        self
    }

    /// Sets the total of the progress display: every metadata block in use is read.
    pub fn expect(&mut self, metadata_used: u64, data_used: u64) {
        self.used = (metadata_used, data_used);
        self.progress.expect(metadata_used);
    }

    /// Sets the total for reading volume by volume, with so many mappings in all: blocks that
    /// several volumes share are read once for each.
    pub fn expect_mappings(&mut self, mappings: u64) {
        let (metadata, data) = (u128::from(self.used.0), u128::from(self.used.1.max(1)));
        let blocks = u64::try_from(metadata * u128::from(mappings) / data).unwrap_or(u64::MAX);
        self.progress.expect(blocks.max(self.used.0));
    }

    /// Ends the display of progress.
    pub fn done(&mut self) {
        self.progress.finish();
    }

    /// The device, as the user named it.
    pub fn name(&self) -> &str {
        &self.source.name
    }

    /// An error about the content of the device.
    pub fn damaged(&self, error: impl ToString) -> ConfigError {
        ConfigError::new(ConfigKind::Damaged, &self.source.name, error.to_string())
    }

    fn look(
        &mut self,
        piece: &Piece,
        wanted: &[MetadataBlock],
        each: &mut dyn FnMut(MetadataBlock, Option<&Block>),
    ) -> Outcome<()> {
        if self.stop.is_some_and(|stop| stop.try_recv().is_ok()) {
            return Err(ConfigError::new(ConfigKind::System, &self.source.name, "interrupted"));
        }
        for at in wanted {
            let begin = (at.0 - piece.first) as usize * BLOCK_BYTES;
            let bytes = block::of(&piece.bytes[begin..begin + BLOCK_BYTES]).ok();
            each(*at, bytes.filter(|_| !piece.bad.contains(&at.0)));
        }
        self.progress.add(wanted.len() as u64);
        Ok(())
    }
}

impl Blocks for MetadataDevice<'_> {
    type Error = ConfigError;

    fn count(&self) -> u64 {
        self.count
    }

    fn read(
        &mut self,
        wanted: &[MetadataBlock],
        each: &mut dyn FnMut(MetadataBlock, Option<&Block>),
    ) -> Outcome<()> {
        let (source, start) = (self.source, self.start);
        if wanted.len() < THREAD_FROM {
            let mut bytes = Vec::new();
            for wanted in pieces(wanted) {
                let piece = read_piece(source, start, wanted, bytes);
                self.look(&piece, wanted, each)?;
                bytes = piece.bytes;
            }
            return Ok(());
        }
        let (full, ready) = sync_channel(PIECES_AHEAD);
        let (give_back, empty) = sync_channel(PIECES_AHEAD + 2);
        std::thread::scope(|scope| {
            // If the caller returns early, it drops the receiver, which ends the reader.
            let ready = ready;
            scope.spawn(move || read_ahead(source, start, wanted, &full, &empty));
            for wanted in pieces(wanted) {
                let piece: Piece = ready.recv().expect("the reader sends every piece");
                self.look(&piece, wanted, each)?;
                // Return the buffer for the next read; a reader that is done does not take it.
                drop(give_back.try_send(piece.bytes));
            }
            Ok(())
        })
    }
}

/// Reads every piece, ahead by as many as there are buffers. Ends early if the receiver is gone.
fn read_ahead(
    source: &Source,
    start: u64,
    wanted: &[MetadataBlock],
    full: &SyncSender<Piece>,
    empty: &Receiver<Vec<u8>>,
) {
    for wanted in pieces(wanted) {
        let piece = read_piece(source, start, wanted, empty.try_recv().unwrap_or_default());
        if full.send(piece).is_err() {
            return;
        }
    }
}

fn read_piece(source: &Source, start: u64, wanted: &[MetadataBlock], mut bytes: Vec<u8>) -> Piece {
    let (first, last) = (wanted[0].0, wanted[wanted.len() - 1].0);
    bytes.resize((last - first + 1) as usize * BLOCK_BYTES, 0);
    let mut bad = Vec::new();
    let offset = |at: u64| start + at * BLOCK_BYTES as u64;
    if source.read_into(offset(first), &mut bytes).is_err() {
        for at in wanted {
            let begin = (at.0 - first) as usize * BLOCK_BYTES;
            let block = &mut bytes[begin..begin + BLOCK_BYTES];
            if let Err(error) = source.read_into(offset(at.0), block) {
                tracing::warn!("metadata block {at}: {error}");
                bad.push(at.0);
            }
        }
    }
    Piece { first, bytes, bad }
}

/// The wanted blocks as pieces: neighbours are joined.
fn pieces(wanted: &[MetadataBlock]) -> impl Iterator<Item = &[MetadataBlock]> {
    let mut left = wanted;
    std::iter::from_fn(move || {
        let first = left.first()?.0;
        let near = |pair: &[MetadataBlock]| {
            pair[1].0 - pair[0].0 <= GAP_BLOCKS && pair[1].0 - first < PIECE_BLOCKS
        };
        let len = 1 + left.windows(2).take_while(|pair| near(pair)).count();
        let (piece, rest) = left.split_at(len);
        left = rest;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use std::fs::{File, write};

    use cairn_format::thin::blocks::Blocks;
    use cairn_format::thin::{BLOCK_BYTES, MetadataBlock};

    use super::{MetadataDevice, pieces};
    use crate::source::Source;

    #[test]
    fn of_a_piece_that_cannot_be_read_the_blocks_are_read_that_can_be() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("meta");
        write(&path, vec![7; 200 * BLOCK_BYTES]).unwrap();
        let source = Source::read(&path).unwrap();
        // Block 100 is half there, and what follows not at all.
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(100 * BLOCK_BYTES as u64 + 2048).unwrap();
        let mut device = MetadataDevice::at(&source, 0, "read").unwrap();
        // By a thread that reads ahead, and without.
        for first in [0, 90] {
            let wanted: Vec<_> = (first..110).map(MetadataBlock).collect();
            let mut seen = Vec::new();
            let read = device.read(&wanted, &mut |at, bytes| {
                assert!(bytes.is_none_or(|bytes| bytes.iter().all(|byte| *byte == 7)));
                seen.push((at.0, bytes.is_some()));
            });
            read.unwrap();
            let expected: Vec<_> = (first..110).map(|at| (at, at < 100)).collect();
            assert_eq!(seen, expected);
        }
    }

    #[test]
    fn near_blocks_are_read_together_up_to_a_mebibyte() {
        let wanted: Vec<_> =
            [0, 1, 9, 18, 1000].into_iter().chain(2000..2300).map(MetadataBlock).collect();
        let lens: Vec<_> = pieces(&wanted).map(<[MetadataBlock]>::len).collect();
        assert_eq!(lens, [3, 1, 1, 256, 44]);
    }
}

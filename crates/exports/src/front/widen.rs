//! Byte ranges on a disk of blocks: a client that was not told the block size may send any range.
//!
//! A read is widened to whole blocks and answered from their middle. A write becomes a
//! read-modify-write: the payload is received at its place in a buffer of whole blocks; the parts
//! of the first and last block that it does not cover are read from the disk; the whole buffer is
//! written at once. Write-zeroes rewrites only the partly covered blocks. Each of these happens in
//! one exclusive cell over the whole blocks; [`super::gate`] says why that is enough.
//!
//! A discard or write-zeroes may be as long as the export. It goes to the disk in pieces.

use cairn_block::{
    Flags, Io, IoError, IoResult, Op, SECTOR_BYTES, Sector, SectorCount, SectorRange, Segs,
    yield_once,
};

use super::Queue;

/// A run of bytes in an export: never empty, never beyond its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ByteRange {
    /// First byte.
    pub offset: u64,
    /// Bytes; not zero.
    pub length: u64,
}

/// The whole blocks that cover `range`.
pub(crate) fn outer(range: ByteRange, block_bytes: u64) -> SectorRange {
    let end = (range.offset + range.length).next_multiple_of(block_bytes);
    blocks(range.offset - range.offset % block_bytes, end)
}

/// The whole blocks inside `range`, if any.
pub(crate) fn inner(range: ByteRange, block_bytes: u64) -> Option<SectorRange> {
    let start = range.offset.next_multiple_of(block_bytes);
    let end = range.offset + range.length;
    let end = end - end % block_bytes;
    (start < end).then(|| blocks(start, end))
}

fn blocks(start: u64, end: u64) -> SectorRange {
    debug_assert!(start.is_multiple_of(SECTOR_BYTES) && end.is_multiple_of(SECTOR_BYTES));
    SectorRange::between(Sector::of_byte(start), Sector::of_byte(end))
}

/// The longest discard or write-zeroes in bytes, as long as a compact request can be. A longer one
/// goes to the disk in pieces, one after another, so that other requests are served in between.
const PIECE_BYTES: u64 = 4 << 30;

/// True if a range goes to the disk in several pieces.
pub(crate) fn is_long(whole: SectorRange) -> bool {
    whole.to_bytes() > PIECE_BYTES
}

/// A range of whole blocks in pieces, in order. A piece ends at a multiple of `unit`, in which the
/// disk frees space: it would free nothing of a unit that two pieces share.
fn pieces(range: SectorRange, unit: SectorCount) -> impl Iterator<Item = SectorRange> {
    let (mut at, end) = (range.start, range.end());
    std::iter::from_fn(move || {
        let longest = at + SectorCount::of_bytes(PIECE_BYTES);
        let aligned = Sector(longest.0 - longest.0 % unit.0.max(1));
        let next = if aligned > at { aligned } else { longest };
        let piece = SectorRange::between(at, next.min(end));
        at = piece.end();
        (!piece.is_empty()).then_some(piece)
    })
}

/// Zeroes whole blocks, piece by piece.
pub(crate) async fn zero_pieces<T: 'static>(
    queue: &Queue<T>,
    whole: SectorRange,
    flags: Flags,
) -> IoResult {
    // If the disk refuses the first piece because it would not be fast, nothing was changed.
    for piece in pieces(whole, queue.unit()) {
        between_pieces(queue).await?;
        queue.write_piece(Io::on(Op::WriteZeroes, piece).with(flags)).await?;
    }
    Ok(())
}

/// Discards whole blocks, piece by piece.
pub(crate) async fn discard_pieces<T: 'static>(queue: &Queue<T>, whole: SectorRange) -> IoResult {
    for piece in pieces(whole, queue.unit()) {
        between_pieces(queue).await?;
        queue.io(Io::on(Op::Discard, piece)).await?;
    }
    Ok(())
}

/// Lets other tasks run: a disk may be done with a piece at once. Fails if the rest is not wanted.
async fn between_pieces<T: 'static>(queue: &Queue<T>) -> IoResult {
    yield_once().await;
    if queue.is_cut() { Err(IoError::SHUTDOWN) } else { Ok(()) }
}

/// Completes the buffer of `io`, a write of whole blocks of `block_bytes` each that holds the
/// payload of `range` at its place, and carries it out. The queue requires cells.
pub(crate) async fn write<T: 'static>(
    queue: &Queue<T>,
    range: ByteRange,
    block_bytes: u64,
    io: Io,
) -> IoResult {
    let _guard = queue.exclusive(io.range).await;
    complete_edges(queue, &io, range, block_bytes).await?;
    queue.io(io).await
}

/// Zeroes `range`. The queue requires cells.
pub(crate) async fn write_zeroes<T: 'static>(
    queue: &Queue<T>,
    range: ByteRange,
    block_bytes: u64,
    flags: Flags,
) -> IoResult {
    let _guard = queue.exclusive(outer(range, block_bytes)).await;
    zero_parts(queue, range, block_bytes, flags).await
}

/// Fills the parts of the first and last block of `io` that the payload of `range` does not cover.
async fn complete_edges<T: 'static>(
    queue: &Queue<T>,
    io: &Io,
    range: ByteRange,
    block_bytes: u64,
) -> IoResult {
    let (whole, segs) = (io.range, &io.segs);
    let lead = (range.offset - whole.start.to_bytes()) as usize;
    let filled = lead + range.length as usize;
    let total = whole.to_bytes() as usize;
    let last = total - block_bytes as usize;
    let mut edge = vec![0; block_bytes as usize];
    let block = SectorCount::of_bytes(block_bytes);
    if lead > 0 {
        let read = read_block(queue, SectorRange::new(whole.start, block)).await?;
        read.copy_out(0, &mut edge[..lead]);
        segs.copy_in(0, &edge[..lead]);
    }
    if filled < total {
        let start = whole.start + SectorCount::of_bytes(last as u64);
        let read = read_block(queue, SectorRange::new(start, block)).await?;
        read.copy_out(filled - last, &mut edge[filled - last..]);
        segs.copy_in(filled, &edge[filled - last..]);
    }
    Ok(())
}

async fn read_block<T: 'static>(queue: &Queue<T>, range: SectorRange) -> Result<Segs, IoError> {
    let segs = queue.env.segs(range.count);
    queue.io(Io::read(range, segs.clone())).await?;
    Ok(segs)
}

/// Zeroes the whole blocks inside `range`, then its part of each partly covered block.
async fn zero_parts<T: 'static>(
    queue: &Queue<T>,
    range: ByteRange,
    block_bytes: u64,
    flags: Flags,
) -> IoResult {
    let (whole, block) = (outer(range, block_bytes), SectorCount::of_bytes(block_bytes));
    let inner = inner(range, block_bytes);
    // The whole blocks come first: if the disk refuses because it would not be fast, nothing was
    // changed.
    for piece in inner.into_iter().flat_map(|inner| pieces(inner, queue.unit())) {
        between_pieces(queue).await?;
        queue.io(Io::on(Op::WriteZeroes, piece).with(flags)).await?;
    }
    let partial = |block: SectorRange| !inner.is_some_and(|inner| inner.overlaps(block));
    let last = Sector(whole.end().0 - block.0);
    for start in [Some(whole.start), (last > whole.start).then_some(last)].into_iter().flatten() {
        let block = SectorRange::new(start, block);
        if partial(block) {
            zero_in_block(queue, block, range, flags & Flags::FUA).await?;
        }
    }
    Ok(())
}

async fn zero_in_block<T: 'static>(
    queue: &Queue<T>,
    block: SectorRange,
    range: ByteRange,
    flags: Flags,
) -> IoResult {
    let segs = read_block(queue, block).await?;
    let (block_start, block_end) = (block.start.to_bytes(), block.end().to_bytes());
    let from = range.offset.max(block_start);
    let to = (range.offset + range.length).min(block_end);
    segs.zero((from - block_start) as usize, (to - from) as usize);
    queue.io(Io::write(block, segs).with(flags)).await
}

#[cfg(test)]
mod tests {
    use cairn_block::{Sector, SectorCount, SectorRange};

    use super::{ByteRange, PIECE_BYTES, inner, outer, pieces};

    fn sectors(start: u64, count: u64) -> SectorRange {
        SectorRange::new(Sector(start), SectorCount(count))
    }

    #[test]
    fn a_range_inside_one_block_covers_it_and_holds_none() {
        let range = ByteRange { offset: 4097, length: 10 };
        assert_eq!(outer(range, 4096), sectors(8, 8));
        assert_eq!(inner(range, 4096), None);
    }

    #[test]
    fn ragged_ends_are_widened_outside_and_cut_inside() {
        let range = ByteRange { offset: 4095, length: 4098 };
        assert_eq!(outer(range, 4096), sectors(0, 24));
        assert_eq!(inner(range, 4096), Some(sectors(8, 8)));
    }

    #[test]
    fn pieces_cover_a_long_range_in_order_and_a_short_one_is_its_own_piece() {
        let one = SectorCount(1);
        let piece = PIECE_BYTES / 512;
        let all: Vec<_> = pieces(sectors(8, 2 * piece + 8), one).collect();
        assert_eq!(all, [sectors(8, piece), sectors(8 + piece, piece), sectors(8 + 2 * piece, 8)]);
        assert_eq!(pieces(sectors(8, piece), one).collect::<Vec<_>>(), [sectors(8, piece)]);
        assert_eq!(pieces(sectors(8, 0), one).count(), 0);
    }

    #[test]
    fn pieces_end_where_units_of_the_disk_do() {
        let (piece, unit) = (PIECE_BYTES / 512, SectorCount(384));
        let all: Vec<_> = pieces(sectors(8, 3 * piece), unit).collect();
        assert_eq!((all[0].start, all.len()), (Sector(8), 4));
        for (before, after) in all.iter().zip(&all[1..]) {
            assert_eq!((before.end(), before.end().0 % 384), (after.start, 0));
            assert!(before.count.0 > piece - 384 && before.count.0 <= piece);
        }
        assert_eq!(all[3].end(), sectors(8, 3 * piece).end());
    }

    #[test]
    fn whole_blocks_stay_as_they_are() {
        let range = ByteRange { offset: 4096, length: 8192 };
        assert_eq!(outer(range, 4096), sectors(8, 16));
        assert_eq!(inner(range, 4096), Some(sectors(8, 16)));
    }
}

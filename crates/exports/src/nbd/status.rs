//! Block status: what the disk reports about a range, as states of `base:allocation`, and what the
//! export's further contexts report.
//!
//! The source (disk or context) is asked repeatedly until the range is covered or the reply is
//! full, but not without limit, and other tasks run in between. A client that got less than it
//! asked for asks again. Neighbouring runs in one state are one extent. Each selected context is
//! one chunk of the reply, whatever length it covers.

use std::rc::Rc;

use cairn_block::{Extent, ExtentKind, IoError, IoResult, SectorCount, SectorRange, yield_once};

use crate::front::widen;

use super::connection::{Connection, Ticket};
use super::contexts::ContextRun;
use super::reply::{self, Last, ReplyBytes, StatusExtent};
use super::request::ByteRange;
use super::wire::{AllocationState, BASE_ALLOCATION};

/// Most extents in one reply.
const EXTENTS_MAX: usize = 1024;
/// How often the source is asked for one reply, and how often before other tasks run.
const ASKS_MAX: usize = 4096;
const ASKS_PER_TURN: usize = 32;
/// The most bytes that one reply tells of for contexts other than allocation: each ask may read
/// metadata, or have a pool commit.
const CONTEXT_BYTES_MAX: u64 = 4 << 30;

/// Replies to one block status request.
pub(super) async fn block_status(
    conn: Rc<Connection>,
    ticket: Ticket,
    range: ByteRange,
    one_extent: bool,
) {
    let limit = if one_extent { 1 } else { EXTENTS_MAX };
    match describe_all(&conn, &ticket, range, limit).await {
        Ok(reply) => conn.answer_with(ticket, &reply),
        Err(error) => conn.answer(ticket, Err(error)),
    }
}

/// The whole reply: a chunk for every selected context.
async fn describe_all(
    conn: &Connection,
    ticket: &Ticket,
    range: ByteRange,
    limit: usize,
) -> Result<ReplyBytes, IoError> {
    let (form, echo) = (conn.form, ticket.echo);
    let mut reply = ReplyBytes::new();
    let (last, others) =
        conn.contexts.split_last().expect("decoding refuses block status without a context");
    for context in others {
        let extents = describe(conn, &context.name, range, limit).await?;
        reply.extend(reply::block_status(form, echo, Last::No, context.id, &extents));
    }
    let extents = describe(conn, &last.name, range, limit).await?;
    reply.extend(reply::block_status(form, echo, Last::Yes, last.id, &extents));
    Ok(reply)
}

async fn describe(
    conn: &Connection,
    context: &str,
    range: ByteRange,
    limit: usize,
) -> Result<Vec<StatusExtent>, IoError> {
    let whole = widen::outer(range, conn.block_bytes());
    let mut list = ExtentList { range, at: whole.start.to_bytes(), limit, extents: Vec::new() };
    let most = if context == BASE_ALLOCATION { u64::MAX } else { CONTEXT_BYTES_MAX };
    let mut rest = SectorRange::new(whole.start, whole.count.min(SectorCount::of_bytes(most)));
    for asked in 1..=ASKS_MAX {
        // What a pause or an end of the export waits for is answered as far as it is.
        let is_awaited = asked > 1 && conn.queue.is_halted();
        if rest.is_empty() || list.is_full() || is_awaited {
            break;
        }
        if asked.is_multiple_of(ASKS_PER_TURN) {
            yield_once().await;
        }
        let before = rest.start;
        for run in ask(conn, context, rest).await? {
            let count = run.count.min(rest.count);
            list.push(count, run.state);
            rest = SectorRange::new(rest.start + count, rest.count - count);
        }
        check_progress(rest.start > before)?;
    }
    list.extents.truncate(limit);
    Ok(list.extents)
}

async fn ask(
    conn: &Connection,
    context: &str,
    range: SectorRange,
) -> Result<Vec<ContextRun>, IoError> {
    if context != BASE_ALLOCATION {
        return conn.export.contexts.describe(&conn.queue.env, context, range).await;
    }
    let extents = conn.export.shared.disk.extents(&conn.queue.env, range).await?;
    let run =
        |extent: Extent| ContextRun { count: extent.count, state: state_of(extent.kind).bits() };
    Ok(extents.into_iter().map(run).collect())
}

/// A disk that reports nothing about a range breaks its contract; asking again would never end.
fn check_progress(progress: bool) -> IoResult {
    if progress { Ok(()) } else { Err(IoError::IO) }
}

/// Extents of bytes, inside a range, merged.
struct ExtentList {
    range: ByteRange,
    /// First byte not described yet.
    at: u64,
    limit: usize,
    extents: Vec<StatusExtent>,
}

impl ExtentList {
    /// True if one extent more than the limit is held: then the last one within it is complete.
    fn is_full(&self) -> bool {
        self.extents.len() > self.limit
    }

    fn push(&mut self, count: SectorCount, state: u32) {
        let end = self.range.offset + self.range.length;
        let from = self.at.max(self.range.offset);
        self.at += count.to_bytes();
        let to = self.at.min(end);
        if from >= to || self.is_full() {
            return;
        }
        let length = to - from;
        match self.extents.last_mut().filter(|last| last.state == state) {
            Some(last) => last.length += length,
            None => self.extents.push(StatusExtent { length, state }),
        }
    }
}

fn state_of(kind: ExtentKind) -> AllocationState {
    match kind {
        ExtentKind::Data => AllocationState::empty(),
        ExtentKind::Hole => AllocationState::HOLE | AllocationState::ZERO,
        ExtentKind::Zero => AllocationState::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use cairn_block::{ExtentKind, SectorCount};

    use super::{ByteRange, ExtentList, state_of};

    fn list(
        offset: u64,
        length: u64,
        limit: usize,
        kinds: &[(u64, ExtentKind)],
    ) -> Vec<(u64, u32)> {
        let range = ByteRange { offset, length };
        let mut list = ExtentList { range, at: offset - offset % 512, limit, extents: Vec::new() };
        for (count, kind) in kinds {
            list.push(SectorCount(*count), state_of(*kind).bits());
        }
        list.extents.iter().map(|extent| (extent.length, extent.state)).collect()
    }

    #[test]
    fn neighbours_in_one_state_are_merged_and_cut_to_the_range() {
        let kinds = [(1, ExtentKind::Data), (1, ExtentKind::Data), (4, ExtentKind::Hole)];
        assert_eq!(list(100, 1024, 9, &kinds), [(924, 0), (100, 3)]);
    }

    #[test]
    fn at_most_one_extent_beyond_the_limit_is_kept() {
        let kinds = [(1, ExtentKind::Data), (1, ExtentKind::Zero), (1, ExtentKind::Data)];
        assert_eq!(list(0, 1536, 1, &kinds), [(512, 0), (512, 2)]);
    }
}

//! The receiver of a connection: takes requests one after another and starts them.
//!
//! A request that can start at once goes straight to the disk, without a task. One that must wait
//! (for a cell, a read-modify-write, extents, the flush after a trim) becomes a task of its own.
//! The receiver never waits for the end of a request.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use cairn_block::{Direction, Flags, Io, Op, Passage, Sector};
use cairn_tls::Session;

use crate::front::{First, Halted, Room, first, widen};

use super::connection::{Connection, ReadPart, Ticket, Turn};
use super::handover::Parted;
use super::payload::Payload;
use super::receiver::{Ended, Receiver};
use super::reply;
use super::request::{ByteRange, Command, Decoded, Request, decode, peek};
use super::status;
use super::wire::Echo;

/// Serves requests until the client leaves or breaks the protocol, or until the connection leaves
/// for another process: then what that one needs.
pub(super) async fn receive(
    conn: &Rc<Connection>,
    mut receiver: Receiver,
) -> Option<(Parted, Arc<OwnedFd>)> {
    let name = &conn.export.name;
    let parted = loop {
        match requests(conn, &mut receiver).await {
            Ok(()) => break None,
            Err(Ended::Halted) => {}
            Err(ended) => {
                tracing::debug!("export `{name}`: connection ends: {ended:?}");
                if let Some(error) = conn.channel.tls().and_then(Session::error) {
                    let key = format!("export '{name}': TLS connection closed");
                    conn.queue.env.warn(&key, || format!("{key}: {error}"));
                }
                if let Ended::Failed(_) = ended {
                    // A long request need not go on for a client that has died.
                    conn.channel.cut();
                }
                break None;
            }
        }
        let turn = conn.wait_for_end_of_pause().await;
        let rest = receiver.into_rest();
        match turn {
            Turn::Serve => receiver = Receiver::after(&conn.queue.env, rest),
            // Another process cannot go on with the keys: the client connects again.
            Turn::Leave if conn.channel.tls().is_some() => break None,
            Turn::Leave => break Some(conn.hand_over(rest)),
            Turn::End => break None,
        }
    };
    conn.stop_receiving();
    parted
}

/// Serves requests until the client disconnects or breaks the protocol.
async fn requests(conn: &Rc<Connection>, receiver: &mut Receiver) -> Result<(), Ended> {
    receiver.expect_requests(conn.form);
    receiver.end_skip(&conn.channel).await?;
    while let Some(request) = next_request(conn, receiver).await? {
        if conn.export.throttle.is_on() {
            pass(conn, receiver, &request.command).await?;
        }
        serve(conn, receiver, request).await?;
    }
    Ok(())
}

/// Waits for room for a request whose header was taken, and not more. Without room, the receiver
/// has the header again.
async fn room<'a>(
    conn: &'a Connection,
    receiver: &mut Receiver,
    bytes: usize,
) -> Result<Room<'a>, Ended> {
    let room = conn.queue.room(bytes).await;
    Ok(room.inspect_err(|Halted| receiver.unread())?)
}

/// Waits until a request passes the throttle of the export. If the wait is interrupted, the
/// receiver has its header again: the request has not begun. It never does if its client ends its
/// sending before: a client that is gone has no place among those that wait.
async fn pass(
    conn: &Rc<Connection>,
    receiver: &mut Receiver,
    command: &Command,
) -> Result<(), Ended> {
    let Some(passage) = passage_of(command) else { return Ok(()) };
    let (queue, throttle) = (&conn.queue, &conn.export.throttle);
    if throttle.try_pass(queue.env.now(), passage) {
        return Ok(());
    }
    match first(queue.pass(throttle, passage), conn.channel.hung_up(&queue.env)).await {
        First::Left(passed) => Ok(passed.inspect_err(|Halted| receiver.unread())?),
        First::Right(ended) => Err(ended),
    }
}

/// What the limits of the export count. A trim moves no data; a flush and what only asks wait for
/// no limit.
fn passage_of(command: &Command) -> Option<Passage> {
    let (direction, bytes) = match command {
        Command::Read { range, .. } => (Direction::Read, range.length),
        Command::Write { range, .. } | Command::WriteZeroes { range, .. } => {
            (Direction::Write, range.length)
        }
        Command::Trim { .. } => (Direction::Write, 0),
        Command::Flush
        | Command::Cache { .. }
        | Command::BlockStatus { .. }
        | Command::Nothing
        | Command::Disconnect => return None,
    };
    Some(Passage { direction, bytes })
}

/// The next request to serve; none after a disconnect or a breach of the protocol. Answers the
/// requests that it refuses.
async fn next_request(
    conn: &Rc<Connection>,
    receiver: &mut Receiver,
) -> Result<Option<Request>, Ended> {
    loop {
        let header = receiver.header(&conn.channel).await?;
        if receiver.take_fresh() {
            conn.refresh();
            prefetch(conn, receiver, &header);
        }
        match decode(&header, &conn.terms()) {
            Decoded::Request(Request { command: Command::Disconnect, .. }) => return Ok(None),
            Decoded::Request(request) => return Ok(Some(request)),
            Decoded::Broken(breach) => {
                let key = format!("export '{}': connection closed", conn.export.name);
                conn.queue.env.warn(&key, || format!("{key}: {breach}"));
                return Ok(None);
            }
            Decoded::Refused(refusal) => {
                let room = room(conn, receiver, 0).await?;
                let ticket = conn.admit(refusal.echo, room);
                conn.refuse(ticket, refusal.error, refusal.reason);
                receiver.skip(&conn.channel, refusal.payload_to_skip).await?;
            }
        }
    }
}

/// Prefetches for the requests that have arrived together with this one.
fn prefetch(conn: &Rc<Connection>, receiver: &Receiver, header: &[u8]) {
    let Some((_, payload)) = peek(header, conn.form) else { return };
    receiver.ahead(payload, |next| {
        let (offset, payload) = peek(next, conn.form)?;
        conn.queue.env.prefetch(&conn.export.shared.disk, Sector::of_byte(offset));
        Some(payload)
    });
}

async fn serve(
    conn: &Rc<Connection>,
    receiver: &mut Receiver,
    Request { echo, command }: Request,
) -> Result<(), Ended> {
    let room = match command {
        Command::Read { range, .. } => return read(conn, receiver, echo, range).await,
        Command::Write { range, fua } => return write(conn, receiver, echo, range, fua).await,
        _ => room(conn, receiver, 0).await?,
    };
    let ticket = conn.admit(echo, room);
    match command {
        // A read-only client wrote nothing. The system reports a failed write-back once; a flush
        // from here would take that report away from the clients that wrote.
        Command::Flush if conn.may_only_read() => conn.answer(ticket, Ok(())),
        Command::Flush => conn.start(ticket, Io::flush(), None),
        Command::Trim { range, fua } => trim(conn, ticket, range, fua),
        // There is no cache here to read ahead into; reading ahead is left to the disk.
        Command::Cache { .. } => conn.answer(ticket, Ok(())),
        Command::WriteZeroes { range, fua, no_hole, fast_only } => {
            let mut flags = Flags::empty();
            flags.set(Flags::FUA, fua);
            flags.set(Flags::NO_UNMAP, no_hole);
            flags.set(Flags::FAST_ZERO, fast_only);
            write_zeroes(conn, ticket, range, flags);
        }
        Command::BlockStatus { range, one_extent } => {
            conn.queue.env.spawn(status::block_status(conn.clone(), ticket, range, one_extent));
        }
        Command::Nothing => {
            conn.answer_with(ticket, &reply::nothing_done(conn.form, echo));
        }
        Command::Read { .. } | Command::Write { .. } | Command::Disconnect => {
            unreachable!("served before")
        }
    }
    Ok(())
}

async fn read(
    conn: &Rc<Connection>,
    receiver: &mut Receiver,
    echo: Echo,
    range: ByteRange,
) -> Result<(), Ended> {
    let whole = widen::outer(range, conn.block_bytes());
    let bytes = whole.to_bytes() as usize;
    let room = room(conn, receiver, Payload::footprint(bytes)).await?;
    let data = Payload::new(&conn.queue.env, bytes);
    let ticket = conn.admit(echo, room);
    let io = Io::read(whole, data.segs());
    let lead = (range.offset - whole.start.to_bytes()) as usize;
    let length = u32::try_from(range.length).expect("no longer than the longest payload");
    let part = ReadPart { offset: range.offset, length, lead, data };
    conn.start(ticket, io, Some(part));
    Ok(())
}

async fn write(
    conn: &Rc<Connection>,
    receiver: &mut Receiver,
    echo: Echo,
    range: ByteRange,
    fua: bool,
) -> Result<(), Ended> {
    let block_bytes = conn.block_bytes();
    let whole = widen::outer(range, block_bytes);
    let bytes = whole.to_bytes() as usize;
    let room = room(conn, receiver, Payload::footprint(bytes)).await?;
    let data = Payload::new(&conn.queue.env, bytes);
    let segs = data.segs();
    if bytes == range.length as usize {
        receiver.payload(&conn.channel, &segs).await?;
    } else {
        let lead = (range.offset - whole.start.to_bytes()) as usize;
        receiver.payload(&conn.channel, &segs.slice(lead, range.length as usize)).await?;
    }
    let ticket = conn.admit(echo, room);
    let flags = if fua { Flags::FUA } else { Flags::empty() };
    let io = Io::write(whole, segs).with(flags);
    if bytes == range.length as usize {
        conn.start_write(ticket, io);
    } else {
        conn.queue.require_cells();
        let this = conn.clone();
        conn.queue.env.spawn(async move {
            let result = widen::write(&this.queue, range, block_bytes, io).await;
            this.answer(ticket, result);
        });
    }
    Ok(())
}

fn write_zeroes(conn: &Rc<Connection>, ticket: Ticket, range: ByteRange, flags: Flags) {
    let block_bytes = conn.block_bytes();
    let whole = widen::outer(range, block_bytes);
    let is_aligned = whole.to_bytes() == range.length;
    if is_aligned && !widen::is_long(whole) {
        return conn.start_write(ticket, Io::on(Op::WriteZeroes, whole).with(flags));
    }
    if !is_aligned {
        conn.queue.require_cells();
    }
    let this = conn.clone();
    conn.queue.env.spawn(async move {
        let result = match is_aligned {
            true => widen::zero_pieces(&this.queue, whole, flags).await,
            false => widen::write_zeroes(&this.queue, range, block_bytes, flags).await,
        };
        this.answer(ticket, result);
    });
}

/// A trim may forget less than it was asked to: the unaligned ends of the range stay.
fn trim(conn: &Rc<Connection>, ticket: Ticket, range: ByteRange, fua: bool) {
    let whole = match widen::inner(range, conn.block_bytes()) {
        Some(whole) if conn.export.shared.disk.limits().discard => whole,
        _ => return conn.answer(ticket, Ok(())),
    };
    if !fua && !widen::is_long(whole) {
        return conn.start(ticket, Io::on(Op::Discard, whole), None);
    }
    let this = conn.clone();
    conn.queue.env.spawn(async move {
        let result = match widen::discard_pieces(&this.queue, whole).await {
            Ok(()) if fua => this.queue.io(Io::flush()).await,
            result => result,
        };
        this.answer(ticket, result);
    });
}

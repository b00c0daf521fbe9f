//! [`Receiver`]: bytes that arrive on a connection, received into headers and payloads.
//!
//! Owns one staging buffer. Headers and small payloads arrive there, many requests in one receive.
//! The part of a payload that has not arrived yet is received straight into the request's memory;
//! the same receive puts the bytes behind it into the staging buffer. After a large payload only
//! one header is staged, so that a stream of large writes is not copied.
//!
//! A receive is never abandoned: one that is called off ends first, and what it received counts. So
//! at any halt a receiver knows every byte that it took from the socket and that no request has
//! used ([`Receiver::into_rest`]), and another one goes on from there.

use std::collections::VecDeque;
use std::ops::Deref;

use cairn_block::{Buf, Env, Segs};
use cairn_tls::Broken;

use crate::front::Halted;

use super::connection::Channel;
use super::request::REQUEST_BYTES_MAX;
use super::wire::MessageForm;

/// Size of the staging buffer.
const STAGE_BYTES: usize = 64 << 10;

/// A payload of at least this many bytes is large.
const LARGE_BYTES: usize = 32 << 10;

/// If more than this is missing of a payload, the system is asked to receive it in one piece.
const GATHER_BYTES: usize = 64 << 10;

/// This much of such a payload is left to arrive together with the next header.
const TAIL_BYTES: usize = 4 << 10;

/// Why nothing more arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// The peer closed its side.
    Closed,
    /// The system refused, with this errno.
    Failed(i32),
    /// This side stops receiving.
    Halted,
    /// The TLS session has failed, and knows why.
    Insecure,
}

impl From<Broken> for Ended {
    fn from(_: Broken) -> Ended {
        Ended::Insecure
    }
}

impl From<Halted> for Ended {
    fn from(_: Halted) -> Ended {
        Ended::Halted
    }
}

/// The bytes of a connection that were received and that no request has used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rest {
    /// So many bytes from here belong to a request that was refused.
    pub(super) skip: u32,
    /// From the header of a request on, or from what is to be skipped.
    pub(super) bytes: Vec<u8>,
}

/// A request header of either form.
#[derive(Clone, Copy)]
pub(super) struct Header {
    bytes: [u8; REQUEST_BYTES_MAX],
    len: usize,
}

impl Deref for Header {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// See the module's description.
pub(super) struct Receiver {
    buf: Buf,
    start: usize,
    end: usize,
    /// How many bytes to stage at most in the next receive.
    stage_max: usize,
    /// Memory for the receive; empty between two receives.
    segs: Segs,
    /// Something has arrived since the last header was handed out.
    fresh: bool,
    /// Bytes that an earlier receiver had received.
    inherited: VecDeque<u8>,
    /// How many of the next bytes are to be dropped.
    skipping: u32,
    /// The header that was handed out last, as long as all of the connection.
    header: Header,
    /// The request of that header, as far as it has arrived, if its payload did not.
    unfinished: Vec<u8>,
}

impl Receiver {
    /// An empty receiver.
    pub(super) fn new(env: &Env) -> Receiver {
        let (segs, fresh) = (Segs::default(), true);
        let (inherited, skipping, unfinished) = Default::default();
        Receiver {
            inherited,
            skipping,
            unfinished,
            header: Header { bytes: [0; REQUEST_BYTES_MAX], len: 0 },
            buf: env.buf(STAGE_BYTES),
            start: 0,
            end: 0,
            stage_max: STAGE_BYTES,
            segs,
            fresh,
        }
    }

    /// A receiver that goes on where an earlier one was halted.
    pub(super) fn after(env: &Env, Rest { skip, bytes }: Rest) -> Receiver {
        Receiver { skipping: skip, inherited: bytes.into(), ..Receiver::new(env) }
    }

    /// Requests follow, in this form.
    pub(super) fn expect_requests(&mut self, form: MessageForm) {
        self.header.len = form.request_bytes();
    }

    /// What no request has used. The receiver was halted.
    pub(super) fn into_rest(mut self) -> Rest {
        let mut bytes = std::mem::take(&mut self.unfinished);
        self.consume(|staged| {
            bytes.extend_from_slice(staged);
            staged.len()
        });
        bytes.extend(self.inherited);
        Rest { skip: self.skipping, bytes }
    }

    /// Takes the last header back: its request has not begun, and no byte behind it was taken.
    pub(super) fn unread(&mut self) {
        self.start -= self.header.len;
    }

    /// Calls `look` with the staged bytes; it returns how many of them it used.
    pub(super) fn consume(&mut self, look: impl FnOnce(&[u8]) -> usize) {
        let used = self.buf.read(self.start, self.end - self.start, look);
        self.start += used;
        debug_assert!(self.start <= self.end);
    }

    /// True if nothing is staged.
    pub(super) fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// True once after bytes arrived, that is: after the receiver waited.
    pub(super) fn take_fresh(&mut self) -> bool {
        std::mem::take(&mut self.fresh)
    }

    /// Calls `look` for each staged header behind `payload` bytes, as long as its position is
    /// known; `look` returns how many bytes of payload follow that header.
    pub(super) fn ahead(&self, payload: usize, look: impl FnMut(&[u8]) -> Option<usize>) {
        let (staged, len) = (self.end - self.start, self.header.len);
        self.buf.read(self.start, staged, |staged| each_header(staged.get(payload..), len, look));
    }

    async fn receive(&mut self, channel: &Channel, all: bool) -> Result<usize, Ended> {
        let count = match self.inherited.is_empty() {
            true => channel.receive(&mut self.segs, all).await?,
            false => self.receive_inherited(),
        };
        self.segs.clear();
        self.fresh = true;
        Ok(count)
    }

    fn receive_inherited(&mut self) -> usize {
        let count = self.inherited.len().min(self.segs.bytes());
        let bytes: Vec<u8> = self.inherited.drain(..count).collect();
        self.segs.copy_in(0, &bytes);
        count
    }

    /// Waits for more bytes than are staged.
    pub(super) async fn fill(&mut self, channel: &Channel) -> Result<(), Ended> {
        self.make_room();
        let room = self.stage_max.min(STAGE_BYTES - self.end);
        self.segs.push(self.buf.clone(), self.end, room);
        self.end += self.receive(channel, false).await?;
        Ok(())
    }

    /// Waits for a complete header.
    pub(super) async fn header(&mut self, channel: &Channel) -> Result<Header, Ended> {
        let len = self.header.len;
        while self.end - self.start < len {
            self.fill(channel).await?;
        }
        let header = &mut self.header.bytes[..len];
        self.buf.read(self.start, len, |bytes| header.copy_from_slice(bytes));
        self.start += len;
        self.stage_max = STAGE_BYTES;
        Ok(self.header)
    }

    /// Waits until all of `into` has arrived, the payload of the last header.
    pub(super) async fn payload(&mut self, channel: &Channel, into: &Segs) -> Result<(), Ended> {
        let mut arrived = 0;
        let ended = self.payload_from(channel, into, &mut arrived).await;
        if ended == Err(Ended::Halted) {
            self.unfinished = self.header.to_vec();
            self.unfinished.resize(self.header.len + arrived, 0);
            into.copy_out(0, &mut self.unfinished[self.header.len..]);
        }
        ended
    }

    async fn payload_from(
        &mut self,
        channel: &Channel,
        into: &Segs,
        arrived: &mut usize,
    ) -> Result<(), Ended> {
        let staged = (self.end - self.start).min(into.bytes());
        self.buf.read(self.start, staged, |bytes| into.copy_in(0, bytes));
        self.start += staged;
        *arrived = staged;
        if into.bytes() >= LARGE_BYTES {
            self.stage_max = self.header.len;
        }
        while *arrived < into.bytes() {
            // A part of the payload is missing, so no byte behind it is staged.
            (self.start, self.end) = (0, 0);
            let missing = into.bytes() - *arrived;
            if missing > GATHER_BYTES {
                self.segs.extend(into, *arrived, missing - TAIL_BYTES);
                *arrived += self.receive(channel, true).await?;
                continue;
            }
            self.segs.extend(into, *arrived, missing);
            self.segs.push(self.buf.clone(), 0, self.stage_max);
            let count = self.receive(channel, false).await?;
            *arrived += count.min(missing);
            self.end = count.saturating_sub(missing);
        }
        Ok(())
    }

    /// Waits for `count` bytes and drops them.
    pub(super) async fn skip(&mut self, channel: &Channel, count: u32) -> Result<(), Ended> {
        self.skipping = count;
        self.end_skip(channel).await
    }

    /// Drops what is still to be skipped.
    pub(super) async fn end_skip(&mut self, channel: &Channel) -> Result<(), Ended> {
        loop {
            let dropped = (self.skipping as usize).min(self.end - self.start);
            self.start += dropped;
            self.skipping -= dropped as u32;
            if self.skipping == 0 {
                return Ok(());
            }
            self.fill(channel).await?;
        }
    }

    /// Moves what is staged (less than a header) to the front if the end is near.
    fn make_room(&mut self) {
        let staged = self.end - self.start;
        if staged == 0 {
            (self.start, self.end) = (0, 0);
        } else if STAGE_BYTES - self.end < REQUEST_BYTES_MAX {
            let (start, end) = (self.start, self.end);
            self.buf.write(0, STAGE_BYTES, |bytes| bytes.copy_within(start..end, 0));
            (self.start, self.end) = (0, staged);
        }
    }
}

/// Shows the headers of requests that follow each other; see [`Receiver::ahead`].
fn each_header(mut bytes: Option<&[u8]>, len: usize, mut look: impl FnMut(&[u8]) -> Option<usize>) {
    while let Some((header, rest)) = bytes.and_then(|bytes| bytes.split_at_checked(len)) {
        bytes = look(header).and_then(|payload| rest.get(payload..));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER_BYTES: usize = MessageForm::Simple.request_bytes();

    /// The first bytes of the headers that are shown. The second byte of a header is how much
    /// payload it has; 255 is what cannot be told.
    fn shown(staged: &[u8]) -> Vec<u8> {
        let mut seen = Vec::new();
        each_header(Some(staged), HEADER_BYTES, |header| {
            seen.push(header[0]);
            (header[1] != 255).then_some(usize::from(header[1]))
        });
        seen
    }

    fn header(name: u8, payload: u8) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        (header[0], header[1]) = (name, payload);
        header
    }

    #[test]
    fn the_headers_that_have_arrived_are_shown_past_their_payloads() {
        let mut staged = Vec::new();
        for (name, payload) in [(1, 0), (2, 7), (3, 0)] {
            staged.extend(header(name, payload));
            staged.extend(vec![9; usize::from(payload)]);
        }
        assert_eq!(shown(&staged), [1, 2, 3]);
        assert_eq!(shown(&staged[..staged.len() - 1]), [1, 2], "the last is not whole");
        assert_eq!(shown(&[]), [0; 0]);
    }

    #[test]
    fn what_follows_a_header_that_cannot_be_told_is_not_shown() {
        assert_eq!(shown(&[header(1, 255), header(2, 0)].concat()), [1]);
        let staged = [header(1, 60), header(2, 0)].concat();
        assert_eq!(shown(&staged), [1], "its payload is not all there");
    }
}

//! Requests as bytes: what a [`Lane`] sends. Headers and payloads of many requests leave in one
//! send.

use cairn_block::{Buf, Flags, Op, Segs, until};
use cairn_nbd::wire::{
    CommandFlags, EXTENDED_REQUEST_MAGIC, ExtendedRequestHeader, MessageForm, REQUEST_MAGIC,
    RequestHeader, command,
};
use zerocopy::IntoBytes;

use super::lane::Lane;
use super::link::End;
use cairn_nbd::session::{What, Wire};

/// The longest header.
const HEADER_BYTES: usize = size_of::<ExtendedRequestHeader>();

/// Memory for the headers of one send.
const HEADERS_BYTES: usize = 128 * HEADER_BYTES;

/// A send takes no further request beyond this.
const SEND_BYTES: usize = 1 << 20;

impl Lane<'_> {
    /// Sends what the session has for this lane, until the connection ends.
    pub(super) async fn send(&self) {
        let link = self.link;
        let headers = link.env.buf(HEADERS_BYTES);
        loop {
            until(&link.remote.changed, || {
                link.take_incoming();
                link.is_down() || self.is_next() || link.remote.is_closing()
            })
            .await;
            if link.is_down() {
                return;
            }
            // The disk is gone: nothing else is sent, kept writes the least of all.
            let is_goodbye = link.remote.is_closing();
            let segs = if is_goodbye { self.goodbye(&headers) } else { self.batch(&headers) };
            let sent = self.channel.send(segs).await;
            if is_goodbye {
                self.channel.finish().await;
            }
            let is_sent = sent.is_ok();
            if let Err(why) = sent {
                link.note_end(End { why: format!("send: {why}"), by_server: true });
            }
            if !is_sent || is_goodbye {
                // The receiver of this connection ends, too, and then all others.
                return self.channel.hang_up();
            }
        }
    }

    /// What may be sent now, as much as one send takes.
    fn batch(&self, headers: &Buf) -> Segs {
        let (mut segs, mut used) = (Segs::default(), 0);
        while used + HEADER_BYTES <= HEADERS_BYTES && segs.bytes() < SEND_BYTES && self.is_next() {
            let mut session = self.link.session.borrow_mut();
            let Some(wire) = session.take_next() else { break };
            self.note_sent(wire.cookie);
            let header = Header::of(self.agreed.form, &wire);
            headers.write(used, header.len, |room| room.copy_from_slice(header.bytes()));
            segs.push(headers.clone(), used, header.len);
            used += header.len;
            if let (What::Op(Op::Write), Some(data)) = (wire.what, wire.data) {
                segs.extend(data, 0, data.bytes());
            }
        }
        segs
    }

    fn goodbye(&self, headers: &Buf) -> Segs {
        let header = Header::goodbye(self.agreed.form);
        headers.write(0, header.len, |room| room.copy_from_slice(header.bytes()));
        Segs::of(headers, 0, header.len)
    }
}

/// The header of a request, in either form.
struct Header {
    room: [u8; HEADER_BYTES],
    len: usize,
}

impl Header {
    fn of(form: MessageForm, wire: &Wire<'_, Segs>) -> Header {
        let command = match wire.what {
            What::Op(Op::Read) => command::READ,
            What::Op(Op::Write) => command::WRITE,
            What::Op(Op::Flush) => command::FLUSH,
            What::Op(Op::Discard) => command::TRIM,
            What::Op(Op::WriteZeroes) => command::WRITE_ZEROES,
            What::Status => command::BLOCK_STATUS,
        };
        let writes = matches!(wire.what, What::Op(op) if op.is_write());
        let zeroes = wire.what == What::Op(Op::WriteZeroes);
        let mut flags = CommandFlags::empty();
        flags.set(CommandFlags::FUA, writes && wire.flags.contains(Flags::FUA));
        flags.set(CommandFlags::NO_HOLE, zeroes && wire.flags.contains(Flags::NO_UNMAP));
        flags.set(CommandFlags::FAST_ZERO, zeroes && wire.flags.contains(Flags::FAST_ZERO));
        let has_payload = form == MessageForm::Extended && command == command::WRITE;
        flags.set(CommandFlags::PAYLOAD_LEN, has_payload);
        let (offset, length) = match wire.what {
            What::Op(Op::Flush) => (0, 0),
            _ => (wire.range.start.to_bytes(), wire.range.to_bytes()),
        };
        Header::new(form, (command, flags), wire.cookie, (offset, length))
    }

    fn goodbye(form: MessageForm) -> Header {
        Header::new(form, (command::DISC, CommandFlags::empty()), 0, (0, 0))
    }

    fn new(
        form: MessageForm,
        (command, flags): (u16, CommandFlags),
        cookie: u64,
        (offset, length): (u64, u64),
    ) -> Header {
        let mut header = Header { room: [0; HEADER_BYTES], len: form.request_bytes() };
        let (flags, command) = (flags.bits().into(), command.into());
        let (cookie, offset) = (cookie.into(), offset.into());
        match form {
            MessageForm::Extended => {
                let (magic, length) = (EXTENDED_REQUEST_MAGIC.into(), length.into());
                let fields =
                    ExtendedRequestHeader { magic, flags, command, cookie, offset, length };
                header.room.copy_from_slice(fields.as_bytes());
            }
            MessageForm::Simple | MessageForm::Structured => {
                debug_assert!(length <= u64::from(u32::MAX), "it was cut into pieces");
                let (magic, length) = (REQUEST_MAGIC.into(), (length as u32).into());
                let fields = RequestHeader { magic, flags, command, cookie, offset, length };
                header.room[..header.len].copy_from_slice(fields.as_bytes());
            }
        }
        header
    }

    fn bytes(&self) -> &[u8] {
        &self.room[..self.len]
    }
}

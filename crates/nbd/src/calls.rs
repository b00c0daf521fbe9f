//! [`Calls`]: one request after the other, over a stream that waits for each answer. For the few
//! sectors that are read and written beside an export; no reactor runs it.

use std::io::{self, ErrorKind, Read, Write};

use zerocopy::{FromZeros, IntoBytes};

use crate::negotiation::Agreed;
use crate::wire::{
    MessageForm, REQUEST_MAGIC, RequestHeader, SIMPLE_REPLY_MAGIC, SimpleReply, TransmissionFlags,
    command,
};

/// See the module's description.
pub struct Calls<S: Read + Write> {
    stream: S,
    agreed: Agreed,
    cookie: u64,
}

impl<S: Read + Write> Calls<S> {
    /// The requests of a connection whose replies are simple ones.
    pub fn new(stream: S, agreed: Agreed) -> Calls<S> {
        debug_assert!(agreed.form == MessageForm::Simple, "the wish was for simple replies");
        Calls { stream, agreed, cookie: 0 }
    }

    /// What was agreed on.
    pub fn agreed(&self) -> &Agreed {
        &self.agreed
    }

    /// Fills `room` from an offset on.
    ///
    /// # Errors
    /// Those of the stream and of the server.
    pub fn read(&mut self, offset: u64, room: &mut [u8]) -> io::Result<()> {
        self.ask(command::READ, offset, room.len() as u32, &[])?;
        self.stream.read_exact(room)
    }

    /// Writes `data` at an offset, durably.
    ///
    /// # Errors
    /// Those of the stream and of the server.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.ask(command::WRITE, offset, data.len() as u32, data)?;
        match self.agreed.flags.contains(TransmissionFlags::SEND_FLUSH) {
            true => self.ask(command::FLUSH, 0, 0, &[]),
            // Such a server has made durable what it has answered.
            false => Ok(()),
        }
    }

    fn ask(&mut self, command: u16, offset: u64, length: u32, data: &[u8]) -> io::Result<()> {
        self.send(command, offset, length, data)?;
        let mut reply = SimpleReply::new_zeroed();
        self.stream.read_exact(reply.as_mut_bytes())?;
        if reply.magic.get() != SIMPLE_REPLY_MAGIC || reply.cookie.get() != self.cookie {
            return Err(io::Error::new(ErrorKind::InvalidData, "an answer to another request"));
        }
        match reply.error.get() {
            0 => Ok(()),
            error => Err(io::Error::from_raw_os_error(error.cast_signed())),
        }
    }

    fn send(&mut self, command: u16, offset: u64, length: u32, data: &[u8]) -> io::Result<()> {
        self.cookie += 1;
        let header = RequestHeader {
            magic: REQUEST_MAGIC.into(),
            flags: 0.into(),
            command: command.into(),
            cookie: self.cookie.into(),
            offset: offset.into(),
            length: length.into(),
        };
        self.stream.write_all(&[header.as_bytes(), data].concat())
    }
}

impl<S: Read + Write> Drop for Calls<S> {
    /// Says goodbye. A server that does not hear it sees the end of the connection.
    fn drop(&mut self) {
        let _ = self.send(command::DISC, 0, 0, &[]);
    }
}

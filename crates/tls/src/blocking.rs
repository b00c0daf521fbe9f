//! [`Secured`]: a session over a stream that blocks, for what no reactor runs.

use std::io::{self, ErrorKind, Read, Write};

use crate::session::{Engine, Fed};

/// The most bytes that are received from the stream, or sent to it, at once.
const BYTES: usize = 32 << 10;

/// See the module's description.
pub struct Secured<S> {
    engine: Box<dyn Engine>,
    stream: S,
    room: Box<[u8]>,
    /// What was received and not fed: `input[start..end]`.
    input: Box<[u8]>,
    start: usize,
    end: usize,
    is_closed: bool,
}

impl<S: Read + Write> Secured<S> {
    /// A session over `stream` that has passed its handshake.
    ///
    /// # Errors
    /// The stream's; the other side does not keep to the protocol, or its certificate is refused,
    /// or it refuses that of this side.
    pub fn shake_hands(engine: Box<dyn Engine>, stream: S) -> io::Result<Secured<S>> {
        let [room, input] = [(); 2].map(|()| vec![0; BYTES].into_boxed_slice());
        let mut secured =
            Secured { engine, stream, room, input, start: 0, end: 0, is_closed: false };
        loop {
            secured.send()?;
            if !secured.engine.is_handshaking() {
                return Ok(secured);
            }
            if !secured.receive()? {
                let detail = "found the end of the connection, expected the other side to take the \
                              certificate or key of this one";
                return Err(io::Error::new(ErrorKind::UnexpectedEof, detail));
            }
        }
    }

    /// The session, which has all that arrived and was not read.
    ///
    /// # Errors
    /// It does not take what arrived: the other side sent more than it was asked for.
    pub fn into_engine(mut self) -> io::Result<Box<dyn Engine>> {
        while self.start < self.end {
            self.feed()?;
        }
        Ok(self.engine)
    }

    fn send(&mut self) -> io::Result<()> {
        while self.engine.has_output() {
            let len = self.engine.take_output(&mut self.room);
            self.stream.write_all(&self.room[..len])?;
        }
        Ok(())
    }

    /// Has the session look at something; false at the end of the stream.
    fn receive(&mut self) -> io::Result<bool> {
        if self.is_closed {
            return Ok(false);
        }
        if self.start == self.end {
            (self.start, self.end) = (0, self.stream.read(&mut self.input)?);
        }
        let is_open = self.start < self.end;
        if is_open {
            self.feed()?;
        }
        Ok(is_open)
    }

    fn feed(&mut self) -> io::Result<()> {
        match self.engine.feed(&self.input[self.start..self.end]) {
            Ok(Fed { taken, is_closed }) => {
                self.start = if is_closed { self.end } else { self.start + taken };
                self.is_closed = is_closed;
                Ok(())
            }
            Err(reason) => {
                // Tells the other side why; the reason counts, not whether that arrives.
                let _ = self.send();
                Err(io::Error::new(ErrorKind::InvalidData, reason))
            }
        }
    }
}

impl<S: Read + Write> Read for Secured<S> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        loop {
            let count = self.engine.read(room);
            if count > 0 || room.is_empty() || !self.receive()? {
                return Ok(count);
            }
            self.send()?;
        }
    }
}

impl<S: Read + Write> Write for Secured<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = bytes.len().min(BYTES / 2);
        let written = self.engine.write(&bytes[..count]);
        written.map_err(|_| io::Error::other("the TLS session has failed"))?;
        self.send()?;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

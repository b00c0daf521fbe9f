//! [`Secured`]: a session over a stream that blocks, for what no reactor runs.

use std::io::{self, ErrorKind, Read, Write};

use crate::session::Engine;

/// The most bytes that are received from the stream, or sent to it, at once.
const BYTES: usize = 32 << 10;

/// See the module's description.
pub struct Secured<S> {
    engine: Box<dyn Engine>,
    stream: S,
    room: Box<[u8]>,
    is_closed: bool,
}

impl<S: Read + Write> Secured<S> {
    /// A session over `stream` that has passed its handshake.
    ///
    /// # Errors
    /// The stream's; the other side does not keep to the protocol, or its certificate is refused,
    /// or it refuses that of this side.
    pub fn shake_hands(engine: Box<dyn Engine>, stream: S) -> io::Result<Secured<S>> {
        let room = vec![0; BYTES].into_boxed_slice();
        let mut secured = Secured { engine, stream, room, is_closed: false };
        loop {
            secured.send()?;
            if !secured.engine.is_handshaking() {
                return Ok(secured);
            }
            if secured.is_closed || !secured.receive()? {
                return Err(ErrorKind::UnexpectedEof.into());
            }
        }
    }

    /// The session, which has what arrived and was not read, and the stream.
    pub fn into_parts(self) -> (Box<dyn Engine>, S) {
        (self.engine, self.stream)
    }

    fn send(&mut self) -> io::Result<()> {
        while self.engine.has_output() {
            let len = self.engine.take_output(&mut self.room);
            self.stream.write_all(&self.room[..len])?;
        }
        Ok(())
    }

    /// Receives something; false at the end of the stream.
    fn receive(&mut self) -> io::Result<bool> {
        // The engine holds a bounded amount, and takes no more until it has been read.
        let count = self.stream.read(&mut self.room[..4096])?;
        let mut fed = 0;
        while fed < count && !self.is_closed {
            match self.engine.feed(&self.room[fed..count]) {
                Ok(some) => (fed, self.is_closed) = (fed + some.taken, some.is_closed),
                Err(reason) => {
                    // Tells the other side why; the reason counts, not whether that arrives.
                    let _ = self.send();
                    return Err(io::Error::new(ErrorKind::InvalidData, reason));
                }
            }
        }
        Ok(count > 0)
    }
}

impl<S: Read + Write> Read for Secured<S> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        loop {
            let count = self.engine.read(room);
            if count > 0 || self.is_closed || room.is_empty() || !self.receive()? {
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
        written.map_err(|()| io::Error::other("the TLS session has failed"))?;
        self.send()?;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

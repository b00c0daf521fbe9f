//! [`Session`]: TLS of one connection, and what it takes of a library: an [`Engine`].
//!
//! A session stands between a socket and what reads and writes it: bytes from the socket go in by
//! [`Session::feed`], and the other side's by [`Session::take`] out; [`Session::encrypt`] turns
//! bytes for the other side into bytes for the socket, which [`Session::take_output`] gives out. It
//! never touches the socket and never waits.

use std::cell::{Cell, RefCell};
use std::io::{self, Read, Write};

use cairn_block::{Buf, Env, Segs};

use crate::names::names_of;

/// The most bytes that are received from the socket at once.
const INPUT_BYTES: usize = 64 << 10;

/// The most bytes for the other side that are encrypted before they are sent: seven full records.
const PLAIN_BYTES_MAX: usize = 7 * (16 << 10);

/// Memory for those records, with what each adds.
const OUTPUT_BYTES: usize = 128 << 10;

/// The library's side of a session. It touches no socket.
pub trait Engine: Send {
    /// True until both sides have shown all that they must.
    fn is_handshaking(&self) -> bool;

    /// Acts on bytes from the socket. On an error there may be output that tells the other side.
    fn feed(&mut self, bytes: &[u8]) -> Result<Fed, String>;

    /// Moves bytes of the other side into `room`; answers how many.
    fn read(&mut self, room: &mut [u8]) -> usize;

    /// Encrypts bytes for the other side. It takes all, unless the session has failed.
    fn write(&mut self, bytes: &[u8]) -> Result<(), Broken>;

    /// Encrypts that nothing more comes.
    fn end(&mut self);

    /// True if there are bytes for the socket.
    fn has_output(&self) -> bool;

    /// Moves bytes for the socket into `room`; answers how many.
    fn take_output(&mut self, room: &mut [u8]) -> usize;

    /// The names of the other side, which were checked.
    fn names(&self) -> Vec<String>;
}

/// A session has failed, for a reason that it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Broken;

impl From<Broken> for String {
    fn from(_: Broken) -> String {
        "the TLS session has failed".to_owned()
    }
}

/// What came of bytes from the socket.
pub struct Fed {
    /// How many bytes the engine took.
    pub taken: usize,
    /// The other side has ended its side.
    pub is_closed: bool,
}

impl Engine for rustls::Connection {
    fn is_handshaking(&self) -> bool {
        rustls::CommonState::is_handshaking(self)
    }

    fn feed(&mut self, mut bytes: &[u8]) -> Result<Fed, String> {
        let taken = self.read_tls(&mut bytes).map_err(|error| error.to_string())?;
        if taken == 0 {
            return Err("the session takes no more bytes".to_owned());
        }
        let state = self.process_new_packets().map_err(|error| error.to_string())?;
        Ok(Fed { taken, is_closed: state.peer_has_closed() })
    }

    fn read(&mut self, room: &mut [u8]) -> usize {
        let mut filled = 0;
        while filled < room.len() {
            match self.reader().read(&mut room[filled..]) {
                Ok(more) if more > 0 => filled += more,
                // Nothing is there now, or ever.
                _ => break,
            }
        }
        filled
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Broken> {
        self.writer().write_all(bytes).map_err(|_| Broken)
    }

    fn end(&mut self) {
        self.send_close_notify();
    }

    fn has_output(&self) -> bool {
        self.wants_write()
    }

    fn take_output(&mut self, room: &mut [u8]) -> usize {
        let mut out = io::Cursor::new(room);
        while self.wants_write() && self.write_tls(&mut out).is_ok_and(|count| count > 0) {}
        out.position() as usize
    }

    fn names(&self) -> Vec<String> {
        let certificate = self.peer_certificates().and_then(|chain| chain.first());
        certificate.map(|certificate| names_of(certificate)).unwrap_or_default()
    }
}

/// What a session has for its reader.
pub enum Taken {
    /// So many bytes; none means that more must arrive first.
    Bytes(usize),
    /// The other side has ended its side.
    Closed,
}

/// The TLS session of one connection.
pub struct Session {
    env: Env,
    engine: RefCell<Box<dyn Engine>>,
    /// What was received from the socket.
    input: RefCell<Input>,
    /// Why the session has failed.
    error: RefCell<Option<String>>,
    is_closed: Cell<bool>,
}

/// Bytes from the socket that the session has not looked at: `buf[start..end]`.
struct Input {
    buf: Buf,
    start: usize,
    end: usize,
}

impl Session {
    /// A session that goes on where its engine is.
    pub fn new(env: &Env, engine: Box<dyn Engine>) -> Session {
        let input = Input { buf: env.buf(INPUT_BYTES), start: 0, end: 0 };
        Session {
            env: env.clone(),
            engine: RefCell::new(engine),
            input: RefCell::new(input),
            error: RefCell::default(),
            is_closed: Cell::default(),
        }
    }

    /// True until both sides have shown all that it must.
    pub fn is_handshaking(&self) -> bool {
        self.engine.borrow().is_handshaking()
    }

    /// True if the other side has ended its side.
    pub fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    /// Why the session has failed, for the log.
    pub fn error(&self) -> Option<String> {
        self.error.borrow().clone()
    }

    /// The names of the other side, which were checked; none without a certificate.
    pub fn names(&self) -> Vec<String> {
        self.engine.borrow().names()
    }

    /// Memory for the next receive from the socket. All that was received has been fed.
    pub fn room(&self) -> Segs {
        let mut input = self.input.borrow_mut();
        debug_assert_eq!(input.start, input.end, "what was received is fed first");
        (input.start, input.end) = (0, 0);
        Segs::of(&input.buf, 0, INPUT_BYTES)
    }

    /// So many bytes were received into the room.
    pub fn received(&self, count: usize) {
        self.input.borrow_mut().end = count;
    }

    /// Has the session look at what was received, as far as it can hold what comes of it. False if
    /// there was nothing to look at, or the other side has ended its side.
    ///
    /// # Errors The other side does not keep to the protocol, or its certificate is refused. The
    /// reason is kept, and the output tells the other side.
    pub fn feed(&self) -> Result<bool, Broken> {
        let mut input = self.input.borrow_mut();
        // Bytes behind the other side's end mean nothing.
        if input.start == input.end || self.is_closed.get() {
            return Ok(false);
        }
        let (start, len) = (input.start, input.end - input.start);
        match input.buf.read(start, len, |bytes| self.engine.borrow_mut().feed(bytes)) {
            Ok(Fed { taken, is_closed }) => {
                input.start += taken;
                self.is_closed.set(self.is_closed.get() || is_closed);
                Ok(true)
            }
            Err(reason) => {
                self.error.borrow_mut().get_or_insert(reason);
                Err(Broken)
            }
        }
    }

    /// Moves bytes of the other side into `segs`, from `at` on.
    pub fn take(&self, segs: &Segs, at: usize) -> Taken {
        let mut engine = self.engine.borrow_mut();
        let (mut count, mut is_dry) = (0, false);
        segs.for_each_mut(at, segs.bytes() - at, |piece| {
            if !is_dry {
                let filled = engine.read(piece);
                is_dry = filled < piece.len();
                count += filled;
            }
        });
        match count == 0 && self.is_closed.get() {
            true => Taken::Closed,
            false => Taken::Bytes(count),
        }
    }

    /// Receives at least one byte of the other side into `room`; none if it has ended its side.
    /// `receive` receives at least one byte from the socket. It is waited for only as long as there
    /// is nothing to return, so that what was taken is not lost if it fails.
    ///
    /// # Errors
    /// Those of `receive`; the other side does not keep to the protocol.
    pub async fn receive<E: From<Broken>>(
        &self,
        room: &Segs,
        receive: impl AsyncFn(Segs) -> Result<usize, E>,
    ) -> Result<Option<usize>, E> {
        let mut count = 0;
        loop {
            match self.take(room, count) {
                Taken::Bytes(more) => count += more,
                Taken::Closed if count == 0 => return Ok(None),
                Taken::Closed => {}
            }
            match (count < room.bytes() && self.feed()?, count) {
                (true, _) => {}
                (false, 0) => self.received(receive(self.room()).await?),
                (false, count) => return Ok(Some(count)),
            }
        }
    }

    /// Sends all of `segs`, and leaves it empty. `send` sends all bytes for the socket.
    ///
    /// # Errors
    /// Those of `send`; the session has failed.
    pub async fn send<E: From<Broken>>(
        &self,
        segs: &mut Segs,
        send: impl AsyncFn(Segs) -> Result<(), E>,
    ) -> Result<(), E> {
        while segs.bytes() > 0 {
            let encrypted = self.encrypt(segs);
            // What tells the other side of a failure, too.
            while let Some(output) = self.take_output() {
                send(output).await?;
            }
            segs.advance(encrypted?);
        }
        Ok(())
    }

    /// Encrypts the first bytes of `segs`; answers how many.
    ///
    /// # Errors
    /// The session has failed: nothing more reaches the other side.
    pub fn encrypt(&self, segs: &Segs) -> Result<usize, Broken> {
        let mut engine = self.engine.borrow_mut();
        let count = segs.bytes().min(PLAIN_BYTES_MAX);
        let mut written = Ok(());
        segs.for_each(0, count, |piece| written = written.and_then(|()| engine.write(piece)));
        written.map(|()| count)
    }

    /// Tells the other side that nothing more comes.
    pub fn end(&self) {
        self.engine.borrow_mut().end();
    }

    /// Bytes for the socket; none if there are none.
    pub fn take_output(&self) -> Option<Segs> {
        let mut engine = self.engine.borrow_mut();
        if !engine.has_output() {
            return None;
        }
        let buf = self.env.buf(OUTPUT_BYTES);
        let len = buf.write(0, OUTPUT_BYTES, |room| engine.take_output(room));
        Some(Segs::of(&buf, 0, len))
    }
}

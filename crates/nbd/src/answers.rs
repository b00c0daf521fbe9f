//! [`Answers`]: what the bytes of a server mean for the requests of a client. Data of reads goes
//! straight to where it belongs, except for what arrived together with a header.
//!
//! Nothing that a server says is believed:
//!
//! - A1. Lengths and offsets are compared with what was asked before a byte is stored, and a read
//!   ends well only if each of its bytes has arrived exactly once.
//! - A2. A request is answered once, by chunks or simply. An answer for which there is no request
//!   ends the connection.
//! - A3. Memory is bounded: besides the staging buffer there is at most one unfinished answer for
//!   each request that was sent, with at most [`CHUNKS_MAX`] chunks, or twice as many as it reads
//!   sectors, and one payload of at most [`SMALL_BYTES_MAX`].

use std::collections::BTreeMap;

use cairn_block::{Buf, Extent, IoError, IoResult, Op, SectorRange, Segs};
use zerocopy::FromBytes;

use crate::extents::extents_of;
use crate::negotiation::Agreed;
use crate::session::What;
use crate::wire::{
    AllocationState, ChunkFlags, ChunkHeader, EXTENDED_REPLY_MAGIC, ErrorCode, ExtendedChunkHeader,
    MessageForm, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, SimpleReply, chunk,
};

/// Size of the staging buffer.
pub const STAGE_BYTES: usize = 64 << 10;

/// The longest payload that is not data: extents, or an error with its message.
const SMALL_BYTES_MAX: u64 = 4 << 20;

/// The most chunks of an answer, unless it reads more than half as many sectors.
const CHUNKS_MAX: u64 = 64;

/// Why a connection has ended.
pub type Lost = String;

/// The bytes of a connection, as they arrive.
pub trait Source {
    /// Receives at least one byte into `room`; an error is the end of the connection.
    fn receive(&self, room: Segs) -> impl Future<Output = Result<usize, Lost>>;
}

/// The requests that a server answers.
pub trait Requests {
    /// A request that was sent and has no answer.
    fn asked(&self, cookie: u64) -> Option<Asked>;

    /// The server has answered such a request; of a status request with extents.
    fn answered(&self, cookie: u64, result: IoResult, extents: Vec<Extent>);
}

/// What a request is, as far as its answer has to fit.
pub struct Asked {
    /// What to do.
    pub what: What,
    /// Where.
    pub range: SectorRange,
    /// The memory of a read.
    pub data: Option<Segs>,
}

/// What has arrived of an answer that comes in several chunks.
#[derive(Default)]
struct Partial {
    error: Option<IoError>,
    /// Of a read: what has arrived, start to end in bytes from its begin. Runs that touch are one.
    arrived: BTreeMap<u64, u64>,
    extents: Option<Vec<Extent>>,
    chunks: u64,
}

impl Partial {
    /// Notes that a run has arrived; false if a byte of it had before.
    fn note(&mut self, mut start: u64, mut end: u64) -> bool {
        if let Some((&before, &before_end)) = self.arrived.range(..end).next_back() {
            if before_end > start {
                return false;
            }
            if before_end == start {
                self.arrived.remove(&before);
                start = before;
            }
        }
        if let Some(after_end) = self.arrived.remove(&end) {
            end = after_end;
        }
        self.arrived.insert(start, end);
        true
    }

    fn is_whole(&self, bytes: u64) -> bool {
        self.arrived.get(&0) == Some(&bytes)
    }
}

/// One chunk of an answer, or all of it.
struct Chunk {
    cookie: u64,
    kind: u16,
    is_last: bool,
    length: u64,
}

/// See the module's description.
pub struct Answers<'a, R, S> {
    requests: &'a R,
    source: &'a S,
    agreed: Agreed,
    buf: Buf,
    start: usize,
    end: usize,
    partials: BTreeMap<u64, Partial>,
}

impl<'a, R: Requests, S: Source> Answers<'a, R, S> {
    /// The answers of one connection, from its first byte after the negotiation. `buf` has
    /// [`STAGE_BYTES`].
    pub fn new(requests: &'a R, source: &'a S, agreed: Agreed, buf: Buf) -> Answers<'a, R, S> {
        Answers { requests, source, agreed, buf, start: 0, end: 0, partials: BTreeMap::new() }
    }

    /// How many answers have begun and not ended.
    pub fn unfinished(&self) -> usize {
        self.partials.len()
    }

    /// Receives one answer, or one chunk of an answer.
    ///
    /// # Errors
    /// The connection has ended, or the server breaks the protocol: it has to be ended.
    pub async fn next(&mut self) -> Result<(), Lost> {
        let form = self.agreed.form;
        let mut magic = [0; 4];
        self.stage(4).await?;
        self.buf.read(self.start, 4, |bytes| magic.copy_from_slice(bytes));
        match (u32::from_be_bytes(magic), form) {
            (SIMPLE_REPLY_MAGIC, MessageForm::Simple | MessageForm::Structured) => {
                self.simple().await
            }
            (STRUCTURED_REPLY_MAGIC, MessageForm::Structured) => {
                let header: ChunkHeader = self.header().await?;
                let is_last = header.flags.get() & ChunkFlags::DONE.bits() != 0;
                let (cookie, kind) = (header.cookie.get(), header.kind.get());
                let length = u64::from(header.length.get());
                self.chunk(&Chunk { cookie, kind, is_last, length }).await
            }
            (EXTENDED_REPLY_MAGIC, MessageForm::Extended) => {
                let header: ExtendedChunkHeader = self.header().await?;
                let is_last = header.flags.get() & ChunkFlags::DONE.bits() != 0;
                let (cookie, kind) = (header.cookie.get(), header.kind.get());
                let length = header.length.get();
                self.chunk(&Chunk { cookie, kind, is_last, length }).await
            }
            (magic, _) => Err(format!("the server sends {magic:#x} where an answer begins")),
        }
    }

    fn asked(&self, cookie: u64) -> Result<Asked, Lost> {
        let asked = self.requests.asked(cookie);
        asked.ok_or_else(|| format!("the server answers cookie {cookie}, which nothing has"))
    }

    async fn simple(&mut self) -> Result<(), Lost> {
        let header: SimpleReply = self.header().await?;
        let cookie = header.cookie.get();
        let asked = self.asked(cookie)?;
        if self.partials.contains_key(&cookie) {
            return Err("the server ends an answer of chunks with a simple one".to_owned());
        }
        let result = result_of(header.error.get())?;
        if result.is_ok() && asked.what == What::Status {
            return Err("the server answers a status request without extents".to_owned());
        }
        if let (Ok(()), What::Op(Op::Read)) = (result, asked.what) {
            if self.agreed.form != MessageForm::Simple {
                return Err("the server answers a read without chunks".to_owned());
            }
            let data = asked.data.unwrap_or_default();
            self.receive_into(&data, 0, data.bytes()).await?;
        }
        self.requests.answered(cookie, result, Vec::new());
        Ok(())
    }

    async fn chunk(&mut self, chunk: &Chunk) -> Result<(), Lost> {
        let asked = self.asked(chunk.cookie)?;
        let mut partial = self.partials.remove(&chunk.cookie).unwrap_or_default();
        partial.chunks += 1;
        if partial.chunks > CHUNKS_MAX.max(asked.range.count.0 * 2) {
            return Err("the server answers with too many chunks".to_owned());
        }
        self.payload(chunk, &asked, &mut partial).await?;
        if !chunk.is_last {
            self.partials.insert(chunk.cookie, partial);
            return Ok(());
        }
        let result = partial.error.map_or(Ok(()), Err);
        let bytes = asked.range.to_bytes();
        if asked.what == What::Op(Op::Read) && result.is_ok() && !partial.is_whole(bytes) {
            return Err("the server answers a read without all of its data".to_owned());
        }
        let extents = partial.extents.unwrap_or_default();
        self.requests.answered(chunk.cookie, result, extents);
        Ok(())
    }

    async fn payload(
        &mut self,
        chunk: &Chunk,
        asked: &Asked,
        partial: &mut Partial,
    ) -> Result<(), Lost> {
        let reads = asked.what == What::Op(Op::Read);
        match chunk.kind {
            chunk::NONE if chunk.length == 0 && chunk.is_last => Ok(()),
            chunk::OFFSET_DATA if reads && chunk.length > 8 => {
                let offset = u64::from_be_bytes(self.array().await?);
                let (at, len) = place(asked.range, offset, chunk.length - 8)?;
                if !partial.note(at, at + len) {
                    return Err("the server sends data of a read twice".to_owned());
                }
                let data = asked.data.clone().unwrap_or_default();
                self.receive_into(&data, at as usize, len as usize).await
            }
            chunk::OFFSET_HOLE if reads && chunk.length == 12 => {
                let offset = u64::from_be_bytes(self.array().await?);
                let len = u32::from_be_bytes(self.array().await?);
                let (at, len) = place(asked.range, offset, u64::from(len))?;
                if !partial.note(at, at + len) {
                    return Err("the server sends data of a read twice".to_owned());
                }
                let data = asked.data.clone().unwrap_or_default();
                data.slice(at as usize, len as usize).zero(0, len as usize);
                Ok(())
            }
            chunk::BLOCK_STATUS | chunk::BLOCK_STATUS_EXT if asked.what == What::Status => {
                let payload = self.small(chunk.length).await?;
                let context = self.agreed.allocation;
                let is_extended = chunk.kind == chunk::BLOCK_STATUS_EXT;
                let told = descriptors(&payload, is_extended, context);
                let told = told.ok_or("the server sends extents that are none")?;
                partial.extents = Some(extents_of(asked.range, &told));
                Ok(())
            }
            kind if kind >= 1 << 15 => {
                let payload = self.small(chunk.length).await?;
                let error = payload.first_chunk().map_or(0, |it| u32::from_be_bytes(*it));
                let error = result_of(error)?.err().unwrap_or(IoError::IO);
                partial.error = partial.error.or(Some(error));
                Ok(())
            }
            kind => Err(format!(
                "the server answers with a chunk of type {kind} and {} bytes",
                chunk.length
            )),
        }
    }

    /// Waits until so many bytes are staged.
    async fn stage(&mut self, bytes: usize) -> Result<(), Lost> {
        while self.end - self.start < bytes {
            if STAGE_BYTES - self.end < bytes {
                let (start, end) = (self.start, self.end);
                self.buf.write(0, STAGE_BYTES, |room| room.copy_within(start..end, 0));
                (self.start, self.end) = (0, end - start);
            }
            let room = Segs::of(&self.buf, self.end, STAGE_BYTES - self.end);
            self.end += self.source.receive(room).await?;
        }
        Ok(())
    }

    async fn header<T: FromBytes>(&mut self) -> Result<T, Lost> {
        self.stage(size_of::<T>()).await?;
        let read = |bytes: &[u8]| T::read_from_bytes(bytes).ok();
        let header = self.buf.read(self.start, size_of::<T>(), read);
        self.start += size_of::<T>();
        header.ok_or_else(|| "a header has its own length".to_owned())
    }

    async fn array<const N: usize>(&mut self) -> Result<[u8; N], Lost> {
        self.header().await
    }

    /// A payload that is not data.
    async fn small(&mut self, length: u64) -> Result<Vec<u8>, Lost> {
        if length > SMALL_BYTES_MAX {
            return Err(format!("the server sends {length} bytes that are no data"));
        }
        let mut payload = vec![0; length as usize];
        let mut filled = 0;
        while filled < payload.len() {
            self.stage(1).await?;
            let staged = (self.end - self.start).min(payload.len() - filled);
            let into = &mut payload[filled..filled + staged];
            self.buf.read(self.start, staged, |bytes| into.copy_from_slice(bytes));
            (self.start, filled) = (self.start + staged, filled + staged);
        }
        Ok(payload)
    }

    /// Receives data to where it belongs.
    async fn receive_into(&mut self, data: &Segs, at: usize, len: usize) -> Result<(), Lost> {
        let staged = (self.end - self.start).min(len);
        self.buf.read(self.start, staged, |bytes| data.copy_in(at, bytes));
        self.start += staged;
        let mut filled = staged;
        while filled < len {
            filled += self.source.receive(data.slice(at + filled, len - filled)).await?;
        }
        Ok(())
    }
}

/// Where in a read a run of bytes lies.
fn place(range: SectorRange, offset: u64, len: u64) -> Result<(u64, u64), Lost> {
    let (start, bytes) = (range.start.to_bytes(), range.to_bytes());
    let at = offset.checked_sub(start).filter(|at| *at <= bytes && len <= bytes - at && len > 0);
    let at = at.ok_or("the server sends data outside of what was asked for")?;
    Ok((at, len))
}

/// The result that an error number stands for. A server that shuts down is as good as gone: its
/// requests wait for the next one.
fn result_of(error: u32) -> Result<IoResult, Lost> {
    match error {
        0 => Ok(Ok(())),
        error if error == ErrorCode::Shutdown.number() => Err("the server shuts down".to_owned()),
        error => {
            // A number outside of the protocol's means no more than that the request failed.
            let known = ErrorCode::of(error).unwrap_or(ErrorCode::Io);
            Ok(Err(IoError::from_errno(known.number() as i32)))
        }
    }
}

/// Lengths in bytes and states of a payload with extents.
fn descriptors(
    payload: &[u8],
    is_extended: bool,
    context: Option<u32>,
) -> Option<Vec<(u64, AllocationState)>> {
    let (number, mut rest) = payload.split_first_chunk()?;
    let (size, half) = if is_extended { (16, 8) } else { (8, 4) };
    if is_extended {
        rest = rest.get(4..)?;
    }
    if Some(u32::from_be_bytes(*number)) != context || rest.is_empty() || rest.len() % size != 0 {
        return None;
    }
    let number = |bytes: &[u8]| bytes.iter().fold(0, |sum, byte| sum << 8 | u64::from(*byte));
    let one = |bytes: &[u8]| {
        let (length, state) = bytes.split_at(half);
        (number(length), AllocationState::from_bits_truncate(number(state) as u32))
    };
    Some(rest.chunks_exact(size).map(one).collect())
}

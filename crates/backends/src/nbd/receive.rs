//! Answers of a server: what a [`Link`] receives. Data of reads goes straight to where it belongs,
//! except for what arrived together with a header.
//!
//! Nothing that a server says is believed: lengths and offsets are compared with what was asked
//! before a byte is stored, and a read ends well only if each of its bytes has arrived exactly
//! once.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

use cairn_block::{Buf, Extent, IoError, IoResult, Op, SectorRange, Segs};
use cairn_nbd::wire::{
    AllocationState, ChunkFlags, ChunkHeader, EXTENDED_REPLY_MAGIC, ErrorCode, ExtendedChunkHeader,
    MessageForm, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, SimpleReply, chunk,
};
use zerocopy::FromBytes;

use super::channel::Channel;
use super::extents::extents_of;
use super::link::Link;
use cairn_nbd::session::What;

/// Size of the staging buffer.
const STAGE_BYTES: usize = 64 << 10;

/// The longest payload that is not data: extents, or an error with its message.
const SMALL_BYTES_MAX: u64 = 4 << 20;

/// The most chunks of an answer, unless it reads more than half as many sectors.
const CHUNKS_MAX: u64 = 64;

/// Why a connection has ended.
pub(super) type Lost = String;

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

/// What a request is, as far as its answer has to fit.
struct Asked {
    what: What,
    range: SectorRange,
    data: Option<Segs>,
}

/// The bytes of a connection.
struct Stream<'a> {
    link: &'a Link,
    channel: &'a Channel,
    buf: Buf,
    start: usize,
    end: usize,
}

impl Link {
    /// Receives answers until the connection ends; says why it did.
    pub(super) async fn receive(&self, channel: &Channel) -> Lost {
        let buf = self.env.buf(STAGE_BYTES);
        let mut stream = Stream { link: self, channel, buf, start: 0, end: 0 };
        let partials = RefCell::new(HashMap::new());
        let why = loop {
            if let Err(why) = stream.answer(&partials).await {
                break why;
            }
        };
        self.hang_up(channel);
        why
    }

    fn asked(&self, cookie: u64) -> Result<Asked, Lost> {
        let session = self.session.borrow();
        let Some(wire) = session.sent(cookie) else {
            return Err(format!("the server answers cookie {cookie}, which nothing has"));
        };
        Ok(Asked { what: wire.what, range: wire.range, data: wire.data.cloned() })
    }

    fn answered(&self, cookie: u64, result: IoResult) {
        self.change(|session, tell| session.answered(cookie, result, tell));
        // A request may have waited for this answer, or the end of the link.
        if self.session.borrow().has_next() || self.remote.is_closing() {
            self.remote.changed.notify(usize::MAX);
        }
    }
}

impl Stream<'_> {
    async fn answer(&mut self, partials: &RefCell<HashMap<u64, Partial>>) -> Result<(), Lost> {
        let form = self.link.agreed.get().form;
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
                self.chunk(&Chunk { cookie, kind, is_last, length }, partials).await
            }
            (EXTENDED_REPLY_MAGIC, MessageForm::Extended) => {
                let header: ExtendedChunkHeader = self.header().await?;
                let is_last = header.flags.get() & ChunkFlags::DONE.bits() != 0;
                let (cookie, kind) = (header.cookie.get(), header.kind.get());
                let length = header.length.get();
                self.chunk(&Chunk { cookie, kind, is_last, length }, partials).await
            }
            (magic, _) => Err(format!("the server sends {magic:#x} where an answer begins")),
        }
    }

    async fn simple(&mut self) -> Result<(), Lost> {
        let header: SimpleReply = self.header().await?;
        let cookie = header.cookie.get();
        let asked = self.link.asked(cookie)?;
        let result = result_of(header.error.get())?;
        if result.is_ok() && asked.what == What::Status {
            return Err("the server answers a status request without extents".to_owned());
        }
        if let (Ok(()), What::Op(Op::Read)) = (result, asked.what) {
            if self.link.agreed.get().form != MessageForm::Simple {
                return Err("the server answers a read without chunks".to_owned());
            }
            let data = asked.data.unwrap_or_default();
            self.receive_into(&data, 0, data.bytes()).await?;
        }
        self.link.answered(cookie, result);
        Ok(())
    }

    async fn chunk(
        &mut self,
        chunk: &Chunk,
        partials: &RefCell<HashMap<u64, Partial>>,
    ) -> Result<(), Lost> {
        let asked = self.link.asked(chunk.cookie)?;
        let mut partial = partials.borrow_mut().remove(&chunk.cookie).unwrap_or_default();
        partial.chunks += 1;
        if partial.chunks > CHUNKS_MAX.max(asked.range.count.0 * 2) {
            return Err("the server answers with too many chunks".to_owned());
        }
        self.payload(chunk, &asked, &mut partial).await?;
        if !chunk.is_last {
            partials.borrow_mut().insert(chunk.cookie, partial);
            return Ok(());
        }
        let result = partial.error.map_or(Ok(()), Err);
        let bytes = asked.range.to_bytes();
        if asked.what == What::Op(Op::Read) && result.is_ok() && !partial.is_whole(bytes) {
            return Err("the server answers a read without all of its data".to_owned());
        }
        self.link.extents.replace(partial.extents.unwrap_or_default());
        self.link.answered(chunk.cookie, result);
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
                let context = self.link.agreed.get().allocation;
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
            self.end += self.channel.receive(room).await?;
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
            filled += self.channel.receive(data.slice(at + filled, len - filled)).await?;
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

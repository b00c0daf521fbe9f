//! A small NBD client that sends exactly what a test wants, right or wrong.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use cairn_exports::nbd::wire::{
    ChunkHeader, ClientFlags, CommandFlags, EXTENDED_REPLY_MAGIC, EXTENDED_REQUEST_MAGIC,
    ExtendedChunkHeader, OPTION_MAGIC, REQUEST_MAGIC, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC,
    chunk, command, info, option, option_reply,
};
use zerocopy::FromBytes;

/// A connection.
pub struct Client {
    /// The socket, for bytes that no method sends.
    pub stream: UnixStream,
    /// Bytes of the export.
    pub size: u64,
    /// Transmission flags of the export.
    pub flags: u16,
    /// Minimum, preferred and largest block, if the server told them.
    pub block_sizes: Option<(u32, u32, u32)>,
    /// The cookie of the next request.
    pub next_cookie: u64,
    /// It speaks extended headers.
    pub extended: bool,
    /// The offsets of requests, by their cookies: each extended reply repeats its own.
    offsets: HashMap<u64, u64>,
}

/// What the client asks for during the negotiation.
#[derive(Clone, Copy, Default)]
pub struct Wishes {
    /// Structured replies.
    pub structured: bool,
    /// Extended headers.
    pub extended: bool,
    /// The block sizes.
    pub block_sizes: bool,
    /// Contexts for block status.
    pub allocation: bool,
}

/// One whole reply.
#[derive(Debug, PartialEq, Eq)]
pub struct Reply {
    /// That of the request.
    pub cookie: u64,
    /// An error number of NBD; 0 is success.
    pub error: u32,
    /// What was read.
    pub data: Vec<u8>,
    /// Of block status: length and state.
    pub extents: Vec<(u64, u32)>,
}

impl Client {
    /// A client over a connection whose negotiation has begun or ended elsewhere.
    pub fn over(stream: UnixStream) -> Client {
        Client {
            stream,
            size: 0,
            flags: 0,
            block_sizes: None,
            next_cookie: 1,
            extended: false,
            offsets: HashMap::new(),
        }
    }

    /// Connects and sends the client flags.
    pub fn connect(path: &Path) -> UnixStream {
        Client::greet(UnixStream::connect(path).unwrap())
    }

    /// Sends the client flags over a new connection.
    pub fn greet(mut stream: UnixStream) -> UnixStream {
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        stream.write_all(&ClientFlags::all().bits().to_be_bytes()).unwrap();
        stream
    }

    /// Connects and enters the transmission phase of an export.
    pub fn open(path: &Path, export: &str, wishes: Wishes) -> Client {
        Client::open_with(path, export, wishes, &["base:allocation"])
    }

    /// Connects and agrees on the form of replies; no export is asked for yet.
    pub fn negotiate(path: &Path, wishes: Wishes) -> Client {
        Client::over(Client::connect(path)).agree(wishes)
    }

    /// Agrees on the form of replies.
    pub fn agree(mut self, wishes: Wishes) -> Client {
        self.extended = wishes.extended;
        for (wished, option) in [
            (wishes.structured, option::STRUCTURED_REPLY),
            (wishes.extended, option::EXTENDED_HEADERS),
        ] {
            if wished {
                self.option(option, &[]);
                assert_eq!(self.option_replies().last().unwrap().0, option_reply::ACK);
            }
        }
        self
    }

    /// Lists or selects contexts of an export, as `option` says; returns the names of those found.
    pub fn contexts(&mut self, option: u32, export: &str, queries: &[&str]) -> Vec<String> {
        let mut payload = string(export);
        payload.extend((queries.len() as u32).to_be_bytes());
        queries.iter().for_each(|query| payload.extend(string(query)));
        self.option(option, &payload);
        let replies = self.option_replies();
        let contexts = replies.into_iter().filter(|(kind, _)| *kind == option_reply::META_CONTEXT);
        contexts.map(|(_, payload)| String::from_utf8(payload[4..].to_vec()).unwrap()).collect()
    }

    /// Selects these contexts if it asks for allocation.
    pub fn open_with(path: &Path, export: &str, wishes: Wishes, contexts: &[&str]) -> Client {
        Client::negotiate(path, wishes).enter(export, wishes, contexts)
    }

    /// Enters the transmission phase of an export.
    pub fn enter(mut self, export: &str, wishes: Wishes, contexts: &[&str]) -> Client {
        if wishes.allocation {
            assert_ne!(self.contexts(option::SET_META_CONTEXT, export, contexts), [""; 0]);
        }
        let mut payload = string(export);
        payload.extend(u16::from(wishes.block_sizes).to_be_bytes());
        if wishes.block_sizes {
            payload.extend(info::BLOCK_SIZE.to_be_bytes());
        }
        self.option(option::GO, &payload);
        for (kind, payload) in self.option_replies() {
            match (kind, payload.as_slice()) {
                (option_reply::INFO, [0, 0, rest @ ..]) => {
                    self.size = u64::from_be_bytes(rest[..8].try_into().unwrap());
                    self.flags = u16::from_be_bytes(rest[8..].try_into().unwrap());
                }
                (option_reply::INFO, [0, 3, rest @ ..]) => {
                    let at = |i: usize| u32::from_be_bytes(rest[i..i + 4].try_into().unwrap());
                    self.block_sizes = Some((at(0), at(4), at(8)));
                }
                (option_reply::ACK, _) => {}
                other => panic!("unexpected answer to GO: {other:?}"),
            }
        }
        self
    }

    /// Sends an option.
    pub fn option(&mut self, option: u32, payload: &[u8]) {
        let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
        bytes.extend(option.to_be_bytes());
        bytes.extend((payload.len() as u32).to_be_bytes());
        bytes.extend(payload);
        self.stream.write_all(&bytes).unwrap();
    }

    /// Replies up to the acknowledgement or an error.
    pub fn option_replies(&mut self) -> Vec<(u32, Vec<u8>)> {
        let mut replies = Vec::new();
        loop {
            let mut header = [0; 20];
            self.stream.read_exact(&mut header).unwrap();
            let kind = u32::from_be_bytes(header[12..16].try_into().unwrap());
            let length = u32::from_be_bytes(header[16..].try_into().unwrap());
            let mut payload = vec![0; length as usize];
            self.stream.read_exact(&mut payload).unwrap();
            replies.push((kind, payload));
            if kind == option_reply::ACK || kind >> 31 == 1 {
                return replies;
            }
        }
    }

    /// The header of the next request, in the negotiated form.
    pub fn header(&mut self, command: u16, flags: u16, offset: u64, length: u64) -> Vec<u8> {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        if self.extended {
            self.offsets.insert(cookie, offset);
        }
        let magic = if self.extended { EXTENDED_REQUEST_MAGIC } else { REQUEST_MAGIC };
        let mut bytes = magic.to_be_bytes().to_vec();
        bytes.extend(flags.to_be_bytes());
        bytes.extend(command.to_be_bytes());
        bytes.extend(cookie.to_be_bytes());
        bytes.extend(offset.to_be_bytes());
        if self.extended {
            bytes.extend(length.to_be_bytes());
        } else {
            bytes.extend(u32::try_from(length).unwrap().to_be_bytes());
        }
        bytes
    }

    /// The header and data of the next request, a write.
    pub fn write_bytes(&mut self, flags: u16, offset: u64, data: &[u8]) -> Vec<u8> {
        let flag = if self.extended { CommandFlags::PAYLOAD_LEN.bits() } else { 0 };
        let header = self.header(command::WRITE, flags | flag, offset, data.len() as u64);
        [&header, data].concat()
    }

    /// Sends a header; returns its cookie.
    pub fn send(&mut self, command: u16, flags: u16, offset: u64, length: u32) -> u64 {
        self.send_long(command, flags, offset, u64::from(length))
    }

    /// Sends a header whose length may need extended headers; returns its cookie.
    pub fn send_long(&mut self, command: u16, flags: u16, offset: u64, length: u64) -> u64 {
        let cookie = self.next_cookie;
        let bytes = self.header(command, flags, offset, length);
        self.stream.write_all(&bytes).unwrap();
        cookie
    }

    /// Sends a write with its data; returns its cookie.
    pub fn send_write(&mut self, flags: u16, offset: u64, data: &[u8]) -> u64 {
        let cookie = self.next_cookie;
        let bytes = self.write_bytes(flags, offset, data);
        self.stream.write_all(&bytes).unwrap();
        cookie
    }

    /// Receives one whole reply; `read_bytes` is the data length of a simple reply of success.
    pub fn reply(&mut self, read_bytes: usize) -> Reply {
        let mut reply = Reply { cookie: 0, error: 0, data: Vec::new(), extents: Vec::new() };
        loop {
            let mut magic = [0; 4];
            self.stream.read_exact(&mut magic).unwrap();
            match u32::from_be_bytes(magic) {
                EXTENDED_REPLY_MAGIC if self.extended => {
                    if self.extended_chunk(magic, &mut reply) {
                        return reply;
                    }
                }
                other if self.extended => panic!("extended reply magic {other:#x}"),
                SIMPLE_REPLY_MAGIC => {
                    let mut rest = [0; 12];
                    self.stream.read_exact(&mut rest).unwrap();
                    reply.error = u32::from_be_bytes(rest[..4].try_into().unwrap());
                    reply.cookie = u64::from_be_bytes(rest[4..].try_into().unwrap());
                    if reply.error == 0 {
                        reply.data = vec![0; read_bytes];
                        self.stream.read_exact(&mut reply.data).unwrap();
                    }
                    return reply;
                }
                STRUCTURED_REPLY_MAGIC => {
                    if self.chunk(magic, &mut reply) {
                        return reply;
                    }
                }
                other => panic!("reply magic {other:#x}"),
            }
        }
    }

    /// Receives the rest of a chunk; true if it was the last.
    fn chunk(&mut self, magic: [u8; 4], reply: &mut Reply) -> bool {
        let mut bytes = [0; 20];
        bytes[..4].copy_from_slice(&magic);
        self.stream.read_exact(&mut bytes[4..]).unwrap();
        let header = ChunkHeader::read_from_bytes(&bytes).unwrap();
        reply.cookie = header.cookie.get();
        let length = u64::from(header.length.get());
        self.chunk_payload(header.kind.get(), length, reply);
        header.flags.get() == 1
    }

    /// Receives the rest of an extended chunk; true if it was the last.
    fn extended_chunk(&mut self, magic: [u8; 4], reply: &mut Reply) -> bool {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&magic);
        self.stream.read_exact(&mut bytes[4..]).unwrap();
        let header = ExtendedChunkHeader::read_from_bytes(&bytes).unwrap();
        reply.cookie = header.cookie.get();
        if let Some(&offset) = self.offsets.get(&reply.cookie) {
            assert_eq!(header.offset.get(), offset, "a reply repeats its request's offset");
        }
        self.chunk_payload(header.kind.get(), header.length.get(), reply);
        header.flags.get() == 1
    }

    fn chunk_payload(&mut self, kind: u16, length: u64, reply: &mut Reply) {
        let mut payload = vec![0; length as usize];
        self.stream.read_exact(&mut payload).unwrap();
        let number = |at: usize| u32::from_be_bytes(payload[at..at + 4].try_into().unwrap());
        match kind {
            chunk::NONE => assert_eq!(payload, [0; 0]),
            chunk::OFFSET_DATA => reply.data.extend(&payload[8..]),
            chunk::OFFSET_HOLE => reply.data.resize(reply.data.len() + number(8) as usize, 0),
            chunk::ERROR | chunk::ERROR_OFFSET => reply.error = number(0),
            chunk::BLOCK_STATUS if !self.extended => {
                let descriptors = (4..payload.len()).step_by(8);
                let extent = |at| (u64::from(number(at)), number(at + 4));
                reply.extents.extend(descriptors.map(extent));
            }
            chunk::BLOCK_STATUS_EXT if self.extended => {
                assert_eq!(number(4) as usize * 16 + 8, payload.len(), "the count fits the length");
                let descriptors = (8..payload.len()).step_by(16);
                let long = |at| u64::from(number(at)) << 32 | u64::from(number(at + 4));
                let extent = |at| (long(at), u32::try_from(long(at + 8)).unwrap());
                reply.extents.extend(descriptors.map(extent));
            }
            other => panic!("chunk kind {other}"),
        }
    }

    /// Sends a request and waits for the reply; returns its error.
    pub fn run(&mut self, command: u16, flags: u16, offset: u64, length: u32) -> u32 {
        self.run_long(command, flags, offset, u64::from(length))
    }

    /// Sends a request whose length may need extended headers; returns the error of the reply.
    pub fn run_long(&mut self, command: u16, flags: u16, offset: u64, length: u64) -> u32 {
        let cookie = self.send_long(command, flags, offset, length);
        let reply = self.reply(0);
        assert_eq!(reply.cookie, cookie);
        reply.error
    }

    /// Reads, which must succeed.
    pub fn read(&mut self, offset: u64, length: u32) -> Vec<u8> {
        let cookie = self.send(command::READ, 0, offset, length);
        let reply = self.reply(length as usize);
        assert_eq!((reply.cookie, reply.error), (cookie, 0));
        assert_eq!(reply.data.len(), length as usize);
        reply.data
    }

    /// Writes; returns the error of the reply.
    pub fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> u32 {
        let cookie = self.send_write(flags, offset, data);
        let reply = self.reply(0);
        assert_eq!(reply.cookie, cookie);
        reply.error
    }

    /// True if the server closes the connection without another byte.
    pub fn is_closed(&mut self) -> bool {
        let mut byte = [0];
        match self.stream.read(&mut byte) {
            Ok(count) => count == 0,
            Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

fn string(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

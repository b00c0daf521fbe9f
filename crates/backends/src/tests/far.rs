//! An NBD server in threads, which says what a test wants, right or wrong. Each export that is
//! named is there; the one with the name `x` is that of the data.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;

use cairn_block::sync::Mutex;
use cairn_nbd::wire::{
    CommandFlags, ExtendedRequestHeader, MessageForm, REQUEST_MAGIC, RequestHeader,
    SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, TransmissionFlags, chunk, command, option,
    option_error, option_reply,
};
use zerocopy::{FromBytes, IntoBytes};

/// How a server behaves.
#[derive(Clone, Copy)]
pub struct Manners {
    pub form: MessageForm,
    pub flags: TransmissionFlags,
    /// What it says of blocks: least, preferred and most.
    pub blocks: Option<[u32; 3]>,
    pub size: u64,
    /// Replaces the bytes of an answer to an option; the first argument is the option.
    pub option: fn(u32, Vec<u8>) -> Vec<u8>,
    /// Replaces the bytes of the first connection's second answer: the first is that to the flush
    /// with which a session begins.
    pub answer: fn(Vec<u8>) -> Vec<u8>,
    /// It does so on each connection: with the third answer of the first one, with the second of
    /// the others.
    pub is_always: bool,
    /// With the second connection to the export with the data, all others lose their contents.
    pub forgets: bool,
    /// How many connections to the export with the data it takes at a time.
    pub most: u32,
    /// It ends those that are more only when they have been negotiated.
    pub ends_late: bool,
}

impl Manners {
    pub fn good(form: MessageForm) -> Manners {
        let flags = TransmissionFlags::HAS_FLAGS
            | TransmissionFlags::SEND_FLUSH
            | TransmissionFlags::SEND_FUA
            | TransmissionFlags::SEND_TRIM
            | TransmissionFlags::SEND_WRITE_ZEROES;
        let (blocks, size) = (Some([1, 4096, 65536]), 1 << 20);
        let (option, answer) = (|_, bytes| bytes, |bytes| bytes);
        let (is_always, forgets) = (false, false);
        let (most, ends_late) = (u32::MAX, false);
        Manners { form, flags, blocks, size, option, answer, is_always, forgets, most, ends_late }
    }
}

/// A server, until the folder with its socket is removed.
pub struct Far {
    folder: tempfile::TempDir,
    /// How many there were to the export with the data.
    pub connections: Arc<Mutex<u32>>,
    /// By export.
    pub contents: Contents,
    /// Requests of each of the connections to the export with the data.
    pub requests: Requests,
    /// How many of these there are now.
    pub open: Arc<Mutex<u32>>,
    streams: Arc<Mutex<Vec<UnixStream>>>,
}

type Requests = Arc<Mutex<Vec<u32>>>;

type Contents = Arc<Mutex<HashMap<String, Vec<u8>>>>;

impl Far {
    pub fn serve(manners: Manners) -> Far {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("s")).unwrap();
        let connections = Arc::new(Mutex::new(0));
        let (contents, requests) = (Contents::default(), Requests::default());
        let (count, all, counts) = (connections.clone(), contents.clone(), requests.clone());
        let open = Arc::<Mutex<u32>>::default();
        let opens = open.clone();
        let streams = Arc::<Mutex<Vec<UnixStream>>>::default();
        let all_streams = streams.clone();
        std::thread::spawn(move || {
            while let Ok((stream, _)) = listener.accept() {
                all_streams.lock().push(stream.try_clone().unwrap());
                let (requests, open) = (counts.clone(), opens.clone());
                let (spoil, export, number) = (None, String::new(), None);
                let mut peer = Peer { stream, manners, spoil, export, number, requests, open };
                let (count, all) = (count.clone(), all.clone());
                // The client has gone, or is not answered any more.
                std::thread::spawn(move || peer.serve(&count, &all).ok());
            }
        });
        Far { folder, connections, contents, requests, open, streams }
    }

    /// Ends all connections.
    pub fn cut(&self) {
        for stream in self.streams.lock().drain(..) {
            // It may have ended.
            drop(stream.shutdown(std::net::Shutdown::Both));
        }
    }

    /// Takes its socket away from new clients, or gives it back.
    pub fn hide(&self, is_hidden: bool) {
        let (here, away) = (self.folder.path().join("s"), self.folder.path().join("away"));
        let (from, to) = if is_hidden { (here, away) } else { (away, here) };
        std::fs::rename(from, to).unwrap();
    }

    pub fn uri(&self, more: &str) -> String {
        format!("nbd+unix:///x?socket={}/s{more}", self.folder.path().display())
    }
}

struct Peer {
    stream: UnixStream,
    manners: Manners,
    /// How many answers are good before the one that is not.
    spoil: Option<u32>,
    export: String,
    /// Of the connections to the export with the data.
    number: Option<usize>,
    requests: Requests,
    /// How many of these there are now.
    open: Arc<Mutex<u32>>,
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.stream.shutdown(std::net::Shutdown::Both));
        if self.number.is_some() {
            *self.open.lock() -= 1;
        }
    }
}

impl Peer {
    fn bytes(&mut self, count: usize) -> std::io::Result<Vec<u8>> {
        let mut bytes = vec![0; count];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn serve(&mut self, count: &Mutex<u32>, contents: &Contents) -> std::io::Result<()> {
        self.stream.write_all(b"NBDMAGICIHAVEOPT\0\x03")?;
        self.bytes(4)?;
        let mut takes = true;
        loop {
            let head = self.bytes(16)?;
            let number = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
            let payload = self.bytes(number(12) as usize)?;
            let is_go = number(8) == option::GO;
            if is_go {
                let end = 4 + u32::from_be_bytes(payload[..4].try_into().unwrap()) as usize;
                self.export = String::from_utf8(payload[4..end].to_vec()).unwrap();
                takes = self.begin(count, contents);
                if !takes && !self.manners.ends_late {
                    return Ok(());
                }
            }
            let answer = (self.manners.option)(number(8), self.option(number(8)));
            self.stream.write_all(&answer)?;
            if is_go {
                break;
            }
        }
        if !takes {
            return Ok(());
        }
        loop {
            self.request(contents)?;
        }
    }

    /// A client has named its export, and does not know yet whether it gets it. False if not.
    fn begin(&mut self, count: &Mutex<u32>, contents: &Contents) -> bool {
        if self.export != "x" {
            return true;
        }
        if *self.open.lock() >= self.manners.most {
            return false;
        }
        *self.open.lock() += 1;
        let mut count = count.lock();
        self.number = Some(*count as usize);
        self.requests.lock().push(0);
        *count += 1;
        if self.manners.forgets && *count == 2 {
            contents.lock().retain(|export, _| export == "x");
        }
        self.spoil = match (*count, self.manners.is_always) {
            (1, always) => Some(1 + u32::from(always)),
            (_, true) => Some(1),
            (_, false) => None,
        };
        true
    }

    fn option(&self, asked: u32) -> Vec<u8> {
        let reply = |kind: u32, payload: &[u8]| {
            let magic = cairn_nbd::wire::OPTION_REPLY_MAGIC.to_be_bytes();
            let words = [asked, kind, payload.len() as u32].map(u32::to_be_bytes).concat();
            [magic.as_slice(), &words, payload].concat()
        };
        let form = self.manners.form;
        let has = match asked {
            option::EXTENDED_HEADERS => form == MessageForm::Extended,
            option::STRUCTURED_REPLY => form.has_chunks(),
            option::SET_META_CONTEXT => {
                let context = [&7_u32.to_be_bytes(), b"base:allocation".as_slice()].concat();
                return [reply(option_reply::META_CONTEXT, &context), reply(1, &[])].concat();
            }
            _ => {
                let export = self.manners.size.to_be_bytes();
                let flags = self.manners.flags.bits().to_be_bytes();
                let export = [&[0, 0], export.as_slice(), &flags].concat();
                let blocks = self.manners.blocks.map(|it| it.map(u32::to_be_bytes).concat());
                let blocks = blocks.map(|it| reply(3, &[[0, 3].as_slice(), &it].concat()));
                return [reply(3, &export), blocks.unwrap_or_default(), reply(1, &[])].concat();
            }
        };
        reply(if has { option_reply::ACK } else { option_error::UNSUP }, &[])
    }

    fn request(&mut self, contents: &Contents) -> std::io::Result<()> {
        let head = self.bytes(self.manners.form.request_bytes())?;
        let (command, flags, cookie, offset, length) = match self.manners.form {
            MessageForm::Extended => {
                let it = ExtendedRequestHeader::read_from_bytes(&head).unwrap();
                (it.command, it.flags, it.cookie, it.offset, it.length.get())
            }
            _ => {
                let it = RequestHeader::read_from_bytes(&head).unwrap();
                assert_eq!(it.magic.get(), REQUEST_MAGIC);
                (it.command, it.flags, it.cookie, it.offset, u64::from(it.length.get()))
            }
        };
        if let Some(number) = self.number {
            self.requests.lock()[number] += 1;
        }
        let place = offset.get() as usize..(offset.get() + length) as usize;
        let has_payload = flags.get() & CommandFlags::PAYLOAD_LEN.bits() != 0;
        let is_extended = self.manners.form == MessageForm::Extended;
        let is_write = command.get() == command::WRITE;
        assert_eq!(has_payload, is_extended && is_write);
        let (mut data, mut status) = (Vec::new(), false);
        let written = match is_write {
            true => self.bytes(length as usize)?,
            false => Vec::new(),
        };
        let mut contents = contents.lock();
        let fresh = || vec![0; self.manners.size as usize];
        let content = contents.entry(self.export.clone()).or_insert_with(fresh);
        match command.get() {
            command::WRITE => {
                content[place.clone()].copy_from_slice(&written);
            }
            command::WRITE_ZEROES | command::TRIM => content[place.clone()].fill(0),
            command::READ => data = content[place.clone()].to_vec(),
            command::BLOCK_STATUS => status = true,
            command::DISC => return Err(std::io::ErrorKind::ConnectionReset.into()),
            _ => {}
        }
        drop(contents);
        let chunk = |kind: u16, is_last: bool, payload: &[u8]| {
            let head = [u16::from(is_last), kind].map(u16::to_be_bytes).concat();
            let (magic, mut rest) = match is_extended {
                true => (cairn_nbd::wire::EXTENDED_REPLY_MAGIC, offset.as_bytes().to_vec()),
                false => (STRUCTURED_REPLY_MAGIC, Vec::new()),
            };
            match is_extended {
                true => rest.extend((payload.len() as u64).to_be_bytes()),
                false => rest.extend((payload.len() as u32).to_be_bytes()),
            }
            [&magic.to_be_bytes(), head.as_slice(), cookie.as_bytes(), &rest, payload].concat()
        };
        let answer = match self.manners.form {
            MessageForm::Simple => {
                let head = [SIMPLE_REPLY_MAGIC, 0].map(u32::to_be_bytes).concat();
                [&head, cookie.as_bytes(), &data].concat()
            }
            // Its first half last.
            _ if !data.is_empty() => {
                let (half, start) = (data.len() / 2, offset.get());
                let one = |at: usize, data: &[u8], is_last| {
                    let at = (start + at as u64).to_be_bytes();
                    chunk(chunk::OFFSET_DATA, is_last, &[at.as_slice(), data].concat())
                };
                let second = one(half, &data[half..], false);
                [second, one(0, &data[..half], true)].concat()
            }
            MessageForm::Structured if status => {
                let words = [7, length as u32, 0].map(u32::to_be_bytes).concat();
                chunk(chunk::BLOCK_STATUS, true, &words)
            }
            MessageForm::Extended if status => {
                let words = [7_u32, 1].map(u32::to_be_bytes).concat();
                let extent = [length, 0].map(u64::to_be_bytes).concat();
                chunk(chunk::BLOCK_STATUS_EXT, true, &[words, extent].concat())
            }
            _ => chunk(chunk::NONE, true, &[]),
        };
        let is_spoilt = self.spoil == Some(0);
        self.spoil = self.spoil.and_then(|left: u32| left.checked_sub(1));
        let answer = if is_spoilt { (self.manners.answer)(answer) } else { answer };
        self.stream.write_all(&answer)
    }
}

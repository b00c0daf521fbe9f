//! What a fuzzer does with a server's bytes: has an NBD client read them, with requests under way,
//! and holds the client to its promises.
//!
//! Shared with the ordinary property tests of `crates/nbd`, which run the same bodies on random and
//! mutated bytes in every `cargo test`. A body panics when a promise is broken, and must never
//! depend on anything but its input.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Read, Write};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use cairn_block::{
    BufPool, Extent, Flags, IoError, IoResult, Op, Sector, SectorCount, SectorRange, Segs,
};
use cairn_nbd::answers::{Answers, Asked, Lost, Requests, STAGE_BYTES, Source};
use cairn_nbd::negotiation::{Agreed, Wish, agree, negotiate, start_tls};
use cairn_nbd::session::{Ask, Care, Session, Told, What};
use cairn_nbd::wire::{
    EXTENDED_REPLY_MAGIC, MessageForm, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC,
    TransmissionFlags, chunk,
};

/// A byte of switches (1: simple replies only; 2: the part under TLS alone), then everything that a
/// server says while it negotiates.
pub fn nbd_negotiation(bytes: &[u8]) {
    let Some((&switches, said)) = bytes.split_first() else { return };
    let is_simple = switches & 1 != 0;
    let wish = Wish { device: "nbd://h/x", export: "x", is_simple };
    let mut peer = Peer { said, heard_bytes: 0 };
    let agreed = match switches & 2 {
        0 => negotiate(&mut peer, wish),
        _ => start_tls(&mut peer, wish).and_then(|()| agree(&mut peer, wish)),
    };
    // Flags, and at most an option for TLS, two forms, the context and the export.
    assert!(peer.heard_bytes <= 4 + 5 * 64, "the client says {} bytes", peer.heard_bytes);
    match agreed {
        Ok(agreed) => check_terms(&agreed, is_simple),
        Err(refused) => {
            let line = refused.to_string();
            assert!(line.starts_with("nbd://h/x") && !line.contains(char::is_control), "{line:?}");
        }
    }
}

/// What later code relies on.
fn check_terms(agreed: &Agreed, is_simple: bool) {
    let Agreed { size_bytes, block_bytes, preferred_bytes, payload_bytes_max, .. } = *agreed;
    let block = block_bytes.max(512);
    assert!(block_bytes.is_power_of_two() && block_bytes <= 64 << 10);
    assert!(preferred_bytes >= block_bytes);
    assert!(size_bytes > 0 && size_bytes.is_multiple_of(u64::from(block)));
    assert!(size_bytes <= i64::MAX as u64);
    assert!(payload_bytes_max >= block && payload_bytes_max.is_multiple_of(block));
    assert!(payload_bytes_max <= 32 << 20);
    assert!(!is_simple || agreed.form == MessageForm::Simple);
    assert!(agreed.allocation.is_none() || agreed.form.has_chunks());
}

/// A server that has said all it will ever say.
struct Peer<'a> {
    said: &'a [u8],
    heard_bytes: usize,
}

impl Read for Peer<'_> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        self.said.read(room)
    }
}

impl Write for Peer<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.heard_bytes += bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The memory of the replay, in bytes.
const REPLAY_BYTES: u64 = 64 << 10;

/// The most sectors of a request, and the most that it takes of the memory of the replay.
const SECTORS_MAX: u8 = 32;
const COST_MAX: u64 = 256 + SECTORS_MAX as u64 * 512;

/// The number of the context for extents.
const CONTEXT: u32 = 7;

/// A byte of switches (the form of messages, then what is done for writes that were answered), then
/// commands, each a byte with its parameters: requests of the owner, bytes of the server, well made
/// or not, and lost connections.
pub fn nbd_answers(bytes: &[u8]) {
    let Some((&switches, commands)) = bytes.split_first() else { return };
    let form = match switches & 3 {
        0 => MessageForm::Simple,
        1 => MessageForm::Structured,
        _ => MessageForm::Extended,
    };
    let care = match switches >> 2 & 3 {
        0 | 1 => Care::Keep(REPLAY_BYTES),
        2 => Care::Tell,
        _ => Care::Nothing,
    };
    let client = Client::new(form, care);
    let mut commands = Commands(commands);
    while let Some(end) = client.live(&mut commands) {
        client.lose(end);
    }
    client.lose(End::GiveUp);
    let owners = client.owners.borrow();
    let waits = owners.iter().position(|owner| !owner.has_ended);
    assert_eq!(waits, None, "a request has no end");
}

/// What is left of the input.
struct Commands<'a>(&'a [u8]);

impl<'a> Commands<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        bytes
    }
}

/// How a connection ends: there is another one, at once or after all that waits has failed.
enum End {
    Again,
    GiveUp,
}

/// A request that has no answer.
#[derive(Clone, Copy)]
struct Sent {
    what: What,
    range: SectorRange,
}

/// A request of the owner.
struct Owned {
    reads: bool,
    has_ended: bool,
}

/// What the memory of a read has before it, and no byte of a server.
const STALE: u8 = 0xee;

/// A client, and the bytes on their way to it.
struct Client {
    agreed: Agreed,
    care: Care,
    session: RefCell<Session<usize, Segs>>,
    pool: BufPool,
    owners: RefCell<Vec<Owned>>,
    sent: RefCell<BTreeMap<u64, Sent>>,
    arriving: RefCell<VecDeque<u8>>,
}

impl Client {
    fn new(form: MessageForm, care: Care) -> Client {
        let agreed = Agreed {
            size_bytes: 1 << 20,
            flags: TransmissionFlags::all(),
            form,
            block_bytes: 1,
            preferred_bytes: 4096,
            payload_bytes_max: 32 << 20,
            allocation: form.has_chunks().then_some(CONTEXT),
        };
        Client {
            agreed,
            care,
            session: RefCell::new(Session::new(care)),
            pool: BufPool::default(),
            owners: RefCell::default(),
            sent: RefCell::default(),
            arriving: RefCell::default(),
        }
    }

    /// One connection; none when there are no commands left.
    fn live(&self, commands: &mut Commands<'_>) -> Option<End> {
        let buf = self.pool.alloc(STAGE_BYTES);
        let mut answers = Answers::new(self, self, self.agreed, buf);
        let mut receive = pin!(async {
            loop {
                if let Err(why) = answers.next().await {
                    return why;
                }
                let unfinished = answers.unfinished();
                assert!(unfinished <= self.sent.borrow().len(), "A3: answers without requests");
            }
        });
        self.session.borrow_mut().connected();
        let mut context = Context::from_waker(Waker::noop());
        loop {
            self.send_all();
            if let Poll::Ready(why) = receive.as_mut().poll(&mut context) {
                assert!(!why.is_empty() && !why.contains(char::is_control), "{why:?}");
                return Some(End::Again);
            }
            self.send_all();
            match commands.byte()? % 8 {
                0 | 1 => self.submit(commands)?,
                2 => {
                    let count = commands.byte()?;
                    self.say(commands.bytes(usize::from(count)));
                }
                3 => return Some(End::Again),
                4 => return Some(End::GiveUp),
                _ => self.answer(commands)?,
            }
        }
    }

    fn lose(&self, end: End) {
        self.arriving.borrow_mut().clear();
        self.sent.borrow_mut().clear();
        let mut session = self.session.borrow_mut();
        session.lost(&mut |told| self.told(told));
        if let End::GiveUp = end {
            session.give_up(IoError::IO, &mut |told| self.told(told));
        }
    }

    fn submit(&self, commands: &mut Commands<'_>) -> Option<()> {
        let (kind, start, count) = (commands.byte()?, commands.byte()?, commands.byte()?);
        let op = [Op::Read, Op::Write, Op::Flush, Op::Discard, Op::WriteZeroes];
        let what = op.get(usize::from(kind % 6)).map_or(What::Status, |op| What::Op(*op));
        let range = match what {
            What::Op(Op::Flush) => SectorRange::default(),
            _ => {
                let count = SectorCount(u64::from(count % SECTORS_MAX) + 1);
                SectorRange::new(Sector(start.into()), count)
            }
        };
        let writes = matches!(what, What::Op(op) if op.is_write());
        let flags = if writes && kind & 0x80 != 0 { Flags::FUA } else { Flags::empty() };
        let data = match what {
            What::Op(Op::Read | Op::Write) => {
                let bytes = range.to_bytes() as usize;
                Segs::of(&self.pool.alloc(bytes), 0, bytes)
            }
            _ => Segs::default(),
        };
        data.copy_in(0, &vec![STALE; data.bytes()]);
        let owner = self.owners.borrow().len();
        let reads = what == What::Op(Op::Read);
        self.owners.borrow_mut().push(Owned { reads, has_ended: false });
        self.session.borrow_mut().submit(Ask { what, range, flags, data, owner });
        Some(())
    }

    /// Notes what the session sends now, as a server sees it.
    fn send_all(&self) {
        let mut session = self.session.borrow_mut();
        while let Some(wire) = session.take_next() {
            let (cookie, sent) = (wire.cookie, Sent { what: wire.what, range: wire.range });
            let writes = |sent: &Sent| matches!(sent.what, What::Op(op) if op.is_write());
            let mut all = self.sent.borrow_mut();
            let overlaps = |other: &Sent| writes(other) && other.range.overlaps(sent.range);
            assert!(!writes(&sent) || !all.values().any(overlaps), "N1: two writes at once");
            assert!(all.insert(cookie, sent).is_none(), "a cookie is used twice");
        }
        if let Care::Keep(limit) = self.care {
            assert!(session.held_bytes() <= limit.max(COST_MAX), "N4: {}", session.held_bytes());
        }
    }

    fn told(&self, told: Told<usize, Segs>) {
        match told {
            Told::Ended(owner, result, data) => {
                let owner = &mut self.owners.borrow_mut()[owner];
                assert!(!std::mem::replace(&mut owner.has_ended, true), "a request ends twice");
                if owner.reads && result.is_ok() {
                    let is_stale = data.to_vec().contains(&STALE);
                    assert!(!is_stale, "A1: a read ends well without all of its data");
                }
            }
            Told::Lost => assert_ne!(self.care, Care::Nothing, "N5"),
        }
    }

    /// The server answers one of the requests that were sent.
    fn answer(&self, commands: &mut Commands<'_>) -> Option<()> {
        let (which, how) = (commands.byte()?, commands.byte()?);
        let (cookie, Sent { what, range }) = {
            let sent = self.sent.borrow();
            let number = usize::from(which) % sent.len().max(1);
            let (cookie, sent) = sent.iter().nth(number)?;
            (*cookie, *sent)
        };
        let (start, len) = (range.start.to_bytes(), range.to_bytes());
        let data = |at: u64, len: u64| {
            let place = (start + at).to_be_bytes();
            [place.as_slice(), &vec![how; len as usize]].concat()
        };
        let is_simple = self.agreed.form == MessageForm::Simple;
        let answer = match (how % 8, what) {
            (0, _) | (1..=4, _) if is_simple => {
                let is_ok = how % 8 != 0;
                let reads = is_ok && what == What::Op(Op::Read);
                let payload = vec![how; if reads { len as usize } else { 0 }];
                simple(cookie, if is_ok { 0 } else { 5 }, &payload)
            }
            (0, _) => {
                let error = [0, 0, 0, 5, 0, 0];
                self.chunk(cookie, (1 << 15 | 1, 1), &error)
            }
            (1, What::Op(Op::Read)) => {
                let at = u64::from(commands.byte()?) % len / 512 * 512;
                let first = self.chunk(cookie, (chunk::OFFSET_DATA, 0), &data(at, len - at));
                match at {
                    0 => first,
                    _ => {
                        [first, self.chunk(cookie, (chunk::OFFSET_DATA, 1), &data(0, at))].concat()
                    }
                }
            }
            (1..=4, What::Op(Op::Read)) => {
                self.chunk(cookie, (chunk::OFFSET_DATA, 1), &data(0, len))
            }
            (1..=4, What::Status) => self.status(cookie, len, 1),
            (1..=4, _) => self.chunk(cookie, (chunk::NONE, 1), &[]),
            (5, _) => {
                let (kind, flags, count) = (commands.byte()?, commands.byte()?, commands.byte()?);
                let kind = u16::from(kind & 0x80) << 8 | u16::from(kind & 0x7f);
                self.chunk(cookie, (kind, flags.into()), commands.bytes(count.into()))
            }
            (6, What::Status) => self.status(cookie, len, 0),
            (6, _) => {
                let (at, count) = (u64::from(commands.byte()?), u64::from(commands.byte()?));
                let (at, count) = (at % 64 * 512, count % 8 * 512);
                self.chunk(cookie, (chunk::OFFSET_DATA, 0), &data(at, count))
            }
            _ => simple(cookie, u32::from(commands.byte()? & 1) * 5, &[]),
        };
        self.say(&answer);
        Some(())
    }

    fn say(&self, bytes: &[u8]) {
        let fresh = bytes.iter().map(|byte| if *byte == STALE { STALE - 1 } else { *byte });
        self.arriving.borrow_mut().extend(fresh);
    }

    /// A chunk with one extent of so many bytes, a hole.
    fn status(&self, cookie: u64, len: u64, flags: u16) -> Vec<u8> {
        match self.agreed.form {
            MessageForm::Extended => {
                let (words, extent) = ([CONTEXT, 1].map(u32::to_be_bytes), [len, 3]);
                let payload = [words.concat(), extent.map(u64::to_be_bytes).concat()].concat();
                self.chunk(cookie, (chunk::BLOCK_STATUS_EXT, flags), &payload)
            }
            _ => {
                let words = [CONTEXT, len as u32, 3].map(u32::to_be_bytes);
                self.chunk(cookie, (chunk::BLOCK_STATUS, flags), &words.concat())
            }
        }
    }

    /// A chunk of an answer, in the form that was agreed on.
    fn chunk(&self, cookie: u64, (kind, flags): (u16, u16), payload: &[u8]) -> Vec<u8> {
        let head = [flags, kind].map(u16::to_be_bytes).concat();
        let (magic, rest) = match self.agreed.form {
            MessageForm::Extended => {
                let words = [0, payload.len() as u64].map(u64::to_be_bytes);
                (EXTENDED_REPLY_MAGIC, words.concat())
            }
            _ => (STRUCTURED_REPLY_MAGIC, (payload.len() as u32).to_be_bytes().to_vec()),
        };
        [&magic.to_be_bytes(), head.as_slice(), &cookie.to_be_bytes(), &rest, payload].concat()
    }
}

fn simple(cookie: u64, error: u32, payload: &[u8]) -> Vec<u8> {
    let head = [SIMPLE_REPLY_MAGIC, error].map(u32::to_be_bytes).concat();
    [head.as_slice(), &cookie.to_be_bytes(), payload].concat()
}

impl Source for Client {
    async fn receive(&self, room: Segs) -> Result<usize, Lost> {
        std::future::poll_fn(|_| {
            let mut arriving = self.arriving.borrow_mut();
            let count = arriving.len().min(room.bytes());
            if count == 0 {
                return Poll::Pending;
            }
            let bytes: Vec<u8> = arriving.drain(..count).collect();
            room.copy_in(0, &bytes);
            Poll::Ready(Ok(count))
        })
        .await
    }
}

impl Requests for Client {
    fn asked(&self, cookie: u64) -> Option<Asked> {
        let session = self.session.borrow();
        let wire = session.sent(cookie)?;
        Some(Asked { what: wire.what, range: wire.range, data: wire.data.cloned() })
    }

    fn answered(&self, cookie: u64, result: IoResult, extents: Vec<Extent>) {
        let sent = self.sent.borrow_mut().remove(&cookie).expect("an answer without a request");
        let told: u64 = extents.iter().map(|extent| extent.count.0).sum();
        assert!(told <= sent.range.count.0, "extents beyond the range");
        assert!(extents.iter().all(|extent| extent.count.0 > 0));
        assert!(extents.is_empty() || sent.what == What::Status);
        let was_sent =
            self.session.borrow_mut().answered(cookie, result, &mut |told| self.told(told));
        assert!(was_sent, "A2: a request is answered twice");
    }
}

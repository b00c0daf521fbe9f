//! [`Volume`]: a volume and what is known of it, and [`Client`]: one of its NBD connections, with
//! requests in flight.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::panic::AssertUnwindSafe;
use std::path::Path;
use std::rc::Rc;

use cairn_block::{ErrorKind, Flags, IoError, IoResult, Op, Sector, SectorCount, SectorRange};
use cairn_exports::nbd::wire::command;
use cairn_sim::{ClientId, Content, History, OpTicket};
use cairn_testkit::FailingFiles;

use crate::stacks::VOLUME_BYTES;
use cairn_testkit::nbd::{Client as Connection, Reply, Wishes};

/// Every request covers whole blocks of so many bytes.
const BLOCK: u64 = 4096;
const FUA: u16 = 1;

/// A volume.
pub struct Volume {
    pub name: &'static str,
    /// None before the first look.
    pub history: Option<History>,
    /// It answered no reads: what may fail as a whole did.
    pub gone: bool,
}

/// What happened, line by line, in order.
pub type Log = Rc<RefCell<String>>;

/// One connection.
pub struct Client {
    connection: Connection,
    id: ClientId,
    volume: &'static str,
    history: History,
    /// By cookie.
    pending: BTreeMap<u64, OpTicket>,
    /// What it did, line by line.
    log: Log,
}

impl Client {
    pub fn connect(socket: &Path, volume: &Volume, log: &Log) -> Client {
        let history = volume.history.clone().expect("it was read");
        let wishes = Wishes { structured: true, ..Wishes::default() };
        let connection = Connection::open(socket, volume.name, wishes);
        let (id, log) = (history.connect(), log.clone());
        Client { connection, id, volume: volume.name, history, pending: BTreeMap::new(), log }
    }

    fn note(&self, what: std::fmt::Arguments<'_>) {
        let (mut log, volume, id) = (self.log.borrow_mut(), self.volume, self.id);
        writeln!(log, "{volume} {id:?}: {what}").expect("a string takes what is written");
    }

    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// Sends a request.
    pub fn send(&mut self, op: Op, flags: Flags, range: SectorRange) {
        let ticket = self.history.submit_by(self.id, op, range, flags);
        let (at, length) = (range.start.0 * 512, (range.count.0 * 512) as u32);
        let fua = if flags.contains(Flags::FUA) { FUA } else { 0 };
        let cookie = match op {
            Op::Write => self.connection.send_write(fua, at, &self.history.data(ticket)),
            Op::Read => self.connection.send(command::READ, 0, at, length),
            Op::Flush => self.connection.send(command::FLUSH, 0, 0, 0),
            Op::WriteZeroes => self.connection.send(command::WRITE_ZEROES, fua, at, length),
            Op::Discard => self.connection.send(command::TRIM, fua, at, length),
        };
        self.note(format_args!("{ticket:?} {op:?} {flags:?} {range}"));
        self.pending.insert(cookie, ticket);
    }

    /// Receives a reply, which may be an error if a file failed before.
    pub fn receive(&mut self, files: &FailingFiles) {
        let reply = std::panic::catch_unwind(AssertUnwindSafe(|| self.connection.reply(0)));
        let reply = reply.unwrap_or_else(|_| panic!("no reply:\n{}", self.log.borrow()));
        let ticket = self.pending.remove(&reply.cookie).expect("a reply to a request");
        self.note(format_args!("{ticket:?} ends: {}", reply.error));
        self.history.tolerate_errors(files.failed() > 0);
        self.history.complete(ticket, result(&reply), &reply.data);
    }

    pub fn receive_all(&mut self, files: &FailingFiles) {
        while self.in_flight() > 0 {
            self.receive(files);
        }
    }

    /// The server ended and said that everything is safe: as a flush does.
    pub fn record_whole_stop(&self) {
        let nothing = SectorRange::new(Sector(0), SectorCount(0));
        let flush = self.history.submit_by(self.id, Op::Flush, nothing, Flags::empty());
        self.history.complete(flush, Ok(()), &[]);
    }
}

fn result(reply: &Reply) -> IoResult {
    match reply.error {
        0 => Ok(()),
        28 => Err(IoError::new(ErrorKind::NoSpace)),
        _ => Err(IoError::IO),
    }
}

/// What a client does next.
pub fn draw(rng: &mut fastrand::Rng) -> (Op, Flags, SectorRange) {
    let blocks = VOLUME_BYTES as u64 / BLOCK;
    // Few places, so that they are written again.
    let spot = if rng.bool() { rng.u64(..8) * 16 } else { rng.u64(..blocks) };
    let count = rng.u64(1..=8).min(blocks - spot);
    let sectors = BLOCK / 512;
    let range = SectorRange::new(Sector(spot * sectors), SectorCount(count * sectors));
    let (op, flags) = match rng.u8(..100) {
        0..50 => (Op::Write, Flags::empty()),
        50..57 => (Op::Write, Flags::FUA),
        57..72 => (Op::Read, Flags::empty()),
        72..76 => (Op::WriteZeroes, Flags::empty()),
        76..78 => (Op::Discard, Flags::empty()),
        _ => (Op::Flush, Flags::empty()),
    };
    (op, flags, range)
}

/// The whole volume; None if it answers with errors.
pub fn read_all(socket: &Path, name: &str) -> Option<Vec<Content>> {
    let wishes = Wishes { structured: true, ..Wishes::default() };
    let mut connection = Connection::open(socket, name, wishes);
    connection.send(command::READ, 0, 0, VOLUME_BYTES as u32);
    let reply = connection.reply(0);
    (reply.error == 0).then(|| History::contents(Sector(0), &reply.data))
}

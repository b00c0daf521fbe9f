//! [`History`]: the checker. It sees every operation's submission and completion in order and
//! decides which contents a sector may show, while the world runs and after a crash.
//!
//! Terms: a write *supersedes* another if it was submitted after the other had completed and itself
//! succeeded. A write in flight at a crash never completed.
//!
//! H1. A read shows a write that was submitted before the read completed and that is not superseded
//!     by a write that completed before the read was submitted. The first contents count as a write
//!     at the beginning; write-zeroes count as a write of zeros.
//! H2. A read that met no unfinished, failed or undefined write settles what the sector holds:
//!     later reads may not show older contents.
//! H3. After a crash a sector shows a write that no durable write supersedes. Durable are the
//!     writes that completed before the submission of a flush that succeeded, and the FUA writes
//!     that succeeded.
//! H4. A failed write may show or not. It supersedes nothing, and is superseded like any other.
//! H5. A discard that is not superseded allows zeros, a drive's garbage, and anything that the
//!     sector ever held.
//! H6. The contents read after the recovery are the first contents from then on
//!     ([`History::rebase`]).
//! H7. Without a crash, a read settles nothing about a sector that a discard left undefined: it
//!     stays undefined until it is written ([`History::go_on`]).
//! H8. This rule holds where drives lose the writes that a failed flush should have made durable
//!     ([`History::failed_flushes_lose`]). When a flush fails for a client, this client *doubts*
//!     every write that its earlier flushes do not cover, also those in flight, which may be done
//!     in part. No later flush of this client makes a doubted write durable, and reading it proves
//!     nothing. Another client, whose flush has not failed, still relies on its own flushes: each
//!     client must be told. A client that connects later doubts what any connected client doubts.
//! H9. A disk that may roll back writes that no flush covered ([`History::may_roll_back`]) may
//!     show, at any time, what H3 allows as of the submission of the read.
//! H10. A kill ([`History::kill`]) fails the operations in flight (H4) and makes nothing durable.
//!     The contents read afterwards ([`History::reopen`]) are what the disk holds from then on,
//!     whatever it may have held before; the next flush makes them durable. A write from before
//!     whose data was not read then is lost: flushes of later clients do not cover it.
//! H11. If what is acknowledged outlives a kill, H1 holds for these contents, too, unless the disk
//!     tells its clients of a loss ([`History::check_after_kill`]).

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt;
use std::rc::Rc;

use cairn_block::{Flags, IoResult, Op, SECTOR_BYTES, Sector, SectorCount, SectorRange};

use crate::stamp::{self, Content};

type Tick = u64;

/// The end of an operation that has not ended.
const NEVER: Tick = Tick::MAX;

/// A sector that holds what it must not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation(String);

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Names an operation between its submission and its completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpTicket(usize);

/// Names a client of the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientId(usize);

impl ClientId {
    /// The one that every history has.
    pub const FIRST: ClientId = ClientId(0);

    fn bit(self) -> u64 {
        1 << self.0
    }
}

/// What one client knows.
#[derive(Clone, Default)]
struct Client {
    /// For each flush that succeeded: when it was submitted, and when it ended.
    flushes: Vec<(Tick, Tick)>,
    /// A flush failed for it that may have lost writes (H8).
    in_doubt: bool,
    /// The process that served it was killed.
    gone: bool,
}

impl Client {
    /// When the latest flush that succeeded before `moment` was submitted.
    fn flushed(&self, moment: Tick) -> Tick {
        let ended = self.flushes.iter().filter(|(_, ended)| *ended < moment);
        ended.map(|(submitted, _)| *submitted).max().unwrap_or(0)
    }
}

#[derive(Clone, Copy, Debug)]
struct Record {
    op: Op,
    range: SectorRange,
    fua: bool,
    id: u64,
    submitted: Tick,
    ended: Tick,
    ok: bool,
    /// The client that submitted it.
    client: ClientId,
    /// H8: the clients that doubt it, a bit for each.
    doubted: u64,
}

impl Record {
    fn new(op: Op, range: SectorRange, fua: bool, id: u64, submitted: Tick) -> Record {
        let client = ClientId::FIRST;
        Record { op, range, fua, id, submitted, ended: NEVER, ok: false, client, doubted: 0 }
    }

    /// True if it succeeded and left known contents.
    fn is_definite(&self) -> bool {
        self.ok && matches!(self.op, Op::Write | Op::WriteZeroes)
    }
}

/// The result of a read that settles a sector (H2), or of a read after a kill (H10).
#[derive(Clone, Copy, Debug)]
struct Observed {
    content: Content,
    submitted: Tick,
    ended: Tick,
}

#[derive(Default)]
struct SectorHistory {
    /// Indices of the writes, write-zeroes and discards that touched it, as submitted.
    touched: Vec<usize>,
    /// H2.
    observed: Option<Observed>,
    /// H10.
    reopened: Vec<Observed>,
}

struct Inner {
    seed: u64,
    now: Tick,
    next_id: u64,
    records: Vec<Record>,
    sectors: BTreeMap<u64, SectorHistory>,
    baseline: Vec<Content>,
    /// Unstamped contents that a sector had at some beginning, for H5.
    ever: BTreeMap<u64, Vec<Content>>,
    clients: Vec<Client>,
    /// When the disk was last opened after a kill.
    reopened: Tick,
    unfinished: usize,
    tolerate_errors: bool,
    failed_flushes_lose: bool,
    rolls_back: bool,
    violation: Option<Violation>,
}

/// The operations on one disk and what they allow. Cloning makes another handle.
#[derive(Clone)]
pub struct History(Rc<RefCell<Inner>>);

impl History {
    /// The history of a disk that holds `contents`, sector by sector.
    pub fn new(seed: u64, contents: Vec<Content>) -> History {
        let mut inner = Inner {
            seed,
            now: 0,
            next_id: 1,
            records: Vec::new(),
            sectors: BTreeMap::new(),
            baseline: Vec::new(),
            ever: BTreeMap::new(),
            clients: Vec::new(),
            reopened: 0,
            unfinished: 0,
            tolerate_errors: false,
            failed_flushes_lose: false,
            rolls_back: false,
            violation: None,
        };
        inner.rebase(contents);
        History(Rc::new(RefCell::new(inner)))
    }

    /// The history of a disk of zeros.
    pub fn blank(seed: u64, sectors: SectorCount) -> History {
        History::new(seed, vec![Content::Zero; sectors.0 as usize])
    }

    /// Whether errors that were not planted are allowed: a target that failed permanently because
    /// of a planted error answers with errors of its own.
    pub fn tolerate_errors(&self, tolerate: bool) {
        self.0.borrow_mut().tolerate_errors = tolerate;
    }

    /// Whether a flush that fails may have lost the writes it should have made durable (H8).
    pub fn failed_flushes_lose(&self, lose: bool) {
        self.0.borrow_mut().failed_flushes_lose = lose;
    }

    /// H9: whether the disk may lose, without a crash, writes that are not durable, as a target
    /// does whose commit failed.
    pub fn may_roll_back(&self, may: bool) {
        self.0.borrow_mut().rolls_back = may;
    }

    /// Adds a client with flushes of its own.
    pub fn connect(&self) -> ClientId {
        self.0.borrow_mut().connect()
    }

    /// Records a submission of the first client.
    pub fn submit(&self, op: Op, range: SectorRange, flags: Flags) -> OpTicket {
        self.submit_by(ClientId::FIRST, op, range, flags)
    }

    /// Records a submission of one of the clients.
    pub fn submit_by(
        &self,
        client: ClientId,
        op: Op,
        range: SectorRange,
        flags: Flags,
    ) -> OpTicket {
        self.0.borrow_mut().submit(client, op, range, flags)
    }

    /// The data of a submitted write.
    pub fn data(&self, ticket: OpTicket) -> Vec<u8> {
        let inner = self.0.borrow();
        let record = &inner.records[ticket.0];
        stamp::stamped(record.range, record.id, inner.seed)
    }

    /// Records a completion and checks the data of a read.
    pub fn complete(&self, ticket: OpTicket, result: IoResult, data: &[u8]) {
        self.0.borrow_mut().complete(ticket, result, data);
    }

    /// How many operations have not ended.
    pub fn unfinished(&self) -> usize {
        self.0.borrow().unfinished
    }

    /// The first violation so far.
    ///
    /// # Errors
    /// There was one.
    pub fn verdict(&self) -> Result<(), Violation> {
        self.0.borrow().violation.clone().map_or(Ok(()), Err)
    }

    /// Checks the contents of the disk after a crash (H3).
    ///
    /// # Errors
    /// The first sector that holds what it must not.
    pub fn check_after_crash(&self, contents: &[Content]) -> Result<(), Violation> {
        self.0.borrow().check_after_crash(contents)
    }

    /// H11: checks what was read after a kill.
    ///
    /// # Errors
    /// The first sector that holds what it must not.
    pub fn check_after_kill(&self, contents: &[Content]) -> Result<(), Violation> {
        self.0.borrow().check_after_kill(contents)
    }

    /// H10: the process that served the disk was killed; no operation in flight will end.
    pub fn kill(&self) {
        self.0.borrow_mut().kill();
    }

    /// H10: these contents were read after a kill.
    pub fn reopen(&self, contents: &[Content]) {
        self.0.borrow_mut().reopen(contents);
    }

    /// H6: forgets every operation; these are the contents of the disk now.
    pub fn rebase(&self, contents: Vec<Content>) {
        self.0.borrow_mut().rebase(contents);
    }

    /// H7: forgets every operation, all of which have ended; these contents were read from the
    /// disk.
    pub fn go_on(&self, contents: Vec<Content>) {
        self.0.borrow_mut().go_on(contents);
    }

    /// The contents of a range that was read.
    pub fn contents(start: Sector, bytes: &[u8]) -> Vec<Content> {
        let sectors = bytes.chunks(SECTOR_BYTES as usize);
        let content = |(index, bytes)| Content::of(Sector(start.0 + index), bytes);
        (0u64..).zip(sectors).map(content).collect()
    }
}

impl Inner {
    fn tick(&mut self) -> Tick {
        self.now += 1;
        self.now
    }

    fn rebase(&mut self, contents: Vec<Content>) {
        for (sector, &content) in contents.iter().enumerate() {
            if matches!(content, Content::Other(_)) {
                self.ever.entry(sector as u64).or_default().push(content);
            }
        }
        self.baseline = contents;
        self.records.clear();
        self.sectors.clear();
        self.now = 0;
        self.clients = vec![Client::default()];
        self.reopened = 0;
        self.unfinished = 0;
    }

    fn connect(&mut self) -> ClientId {
        let client = ClientId(self.clients.len());
        assert!(client.0 < u64::BITS as usize, "a bit for each client");
        let in_doubt = self.clients.iter().any(|other| other.in_doubt && !other.gone);
        self.clients.push(Client { in_doubt, ..Client::default() });
        let reopened = self.reopened;
        let doubted = |record: &&mut Record| record.doubted != 0 || record.ended < reopened;
        let records = self.records.iter_mut().filter(doubted);
        records.for_each(|record| record.doubted |= client.bit());
        client
    }

    fn kill(&mut self) {
        let now = self.tick();
        self.unfinished = 0;
        self.clients.iter_mut().for_each(|client| client.gone = true);
        let in_flight = |record: &&mut Record| record.ended == NEVER;
        self.records.iter_mut().filter(in_flight).for_each(|record| record.ended = now);
    }

    fn reopen(&mut self, contents: &[Content]) {
        assert_eq!(self.unfinished, 0, "a kill leaves nothing under way");
        let (submitted, ended) = (self.tick(), self.tick());
        self.reopened = submitted;
        for (sector, &content) in (0u64..).zip(contents) {
            let observed = Observed { content, submitted, ended };
            let history = self.sectors.entry(sector).or_default();
            history.observed = None;
            history.reopened.push(observed);
            if matches!(content, Content::Other(_)) {
                self.ever.entry(sector).or_default().push(content);
            }
        }
    }

    fn go_on(&mut self, contents: Vec<Content>) {
        assert_eq!(self.unfinished, 0, "what is under way cannot be forgotten");
        let undefined = self.sectors.keys().filter(|&&sector| self.is_undefined(sector));
        let undefined: Vec<u64> = undefined.copied().collect();
        self.rebase(contents);
        for sector in undefined {
            let (op, range) = (Op::Discard, SectorRange::new(Sector(sector), SectorCount(1)));
            let discard = Record { ok: true, ended: 0, ..Record::new(op, range, false, 0, 0) };
            self.sectors.entry(sector).or_default().touched.push(self.records.len());
            self.records.push(discard);
        }
    }

    /// True if a discard touched the sector and no write supersedes it.
    fn is_undefined(&self, sector: u64) -> bool {
        let written_after = |end: Tick| {
            self.touched(sector).any(|write| write.is_definite() && write.submitted > end)
        };
        let mut discards = self.touched(sector).filter(|write| write.op == Op::Discard);
        discards.any(|discard| !written_after(discard.ended))
    }

    fn submit(&mut self, client: ClientId, op: Op, range: SectorRange, flags: Flags) -> OpTicket {
        assert!(!self.clients[client.0].gone, "a client of a process that was killed");
        let submitted = self.tick();
        let (id, fua) = (self.next_id, flags.contains(Flags::FUA));
        self.next_id += 1;
        self.unfinished += 1;
        let index = self.records.len();
        let record = Record { client, ..Record::new(op, range, fua, id, submitted) };
        self.records.push(record);
        if op.is_write() {
            for sector in range.start.0..range.end().0 {
                self.sectors.entry(sector).or_default().touched.push(index);
            }
        }
        OpTicket(index)
    }

    fn complete(&mut self, ticket: OpTicket, result: IoResult, data: &[u8]) {
        let ended = self.tick();
        self.unfinished -= 1;
        let record = &mut self.records[ticket.0];
        assert_eq!(record.ended, NEVER, "an operation ends once");
        record.ended = ended;
        record.ok = result.is_ok();
        let record = *record;
        if let Err(error) = result {
            if !error.injected && !self.tolerate_errors {
                self.report(format!("{:?} {} failed: {error}", record.op, record.range));
            }
            if record.op == Op::Flush && self.failed_flushes_lose {
                self.doubt(record.client);
            }
            return;
        }
        match record.op {
            Op::Flush => {
                let client = &mut self.clients[record.client.0];
                client.flushes.push((record.submitted, ended));
            }
            Op::Read => self.judge_read(&record, data),
            Op::Write | Op::WriteZeroes | Op::Discard => {}
        }
    }

    /// H8: a flush of this client failed.
    fn doubt(&mut self, id: ClientId) {
        let client = &mut self.clients[id.0];
        client.in_doubt = true;
        let flushed = client.flushed(NEVER);
        let volatile = |record: &&mut Record| record.ended >= flushed;
        self.records.iter_mut().filter(volatile).for_each(|record| record.doubted |= id.bit());
    }

    /// When the latest flush that succeeded for any client was submitted.
    fn flushed(&self) -> Tick {
        self.clients.iter().map(|client| client.flushed(NEVER)).max().unwrap_or(0)
    }

    fn report(&mut self, text: String) {
        self.violation.get_or_insert(Violation(text));
    }

    fn judge_read(&mut self, read: &Record, data: &[u8]) {
        let contents = History::contents(read.range.start, data);
        assert_eq!(contents.len() as u64, read.range.count.0, "a read is judged whole");
        for (sector, content) in (read.range.start.0..).zip(contents) {
            if !self.may_read(sector, content, read) {
                let what = format!("a read (submitted {}, ended {})", read.submitted, read.ended);
                let text = self.describe(sector, content, &what);
                return self.report(text);
            }
            if self.is_quiet(sector, read) {
                let observed = Observed { content, submitted: read.submitted, ended: read.ended };
                self.sectors.entry(sector).or_default().observed = Some(observed);
            }
        }
    }

    fn touched(&self, sector: u64) -> impl Iterator<Item = &Record> {
        let history = self.sectors.get(&sector);
        history.into_iter().flat_map(|history| &history.touched).map(|&index| &self.records[index])
    }

    /// H2, H10.
    fn observed(&self, sector: u64) -> impl Iterator<Item = Observed> {
        let history = self.sectors.get(&sector).into_iter();
        let reopened = history.clone().flat_map(|history| &history.reopened);
        reopened.chain(history.flat_map(|history| &history.observed)).copied()
    }

    /// True if a write or contents that ended at `end` were superseded before `moment`.
    fn superseded(&self, sector: u64, end: Tick, moment: Tick) -> bool {
        let by_write = |w: &Record| w.is_definite() && w.submitted > end && w.ended < moment;
        let by_read = |read: Observed| read.submitted > end && read.ended < moment;
        self.touched(sector).any(by_write) || self.observed(sector).any(by_read)
    }

    /// As `superseded`, counting only what was durable before `moment`.
    fn durably_superseded(&self, sector: u64, end: Tick, moment: Tick) -> bool {
        let clients: Vec<_> =
            self.clients.iter().map(|client| (client.flushed(moment), client.in_doubt)).collect();
        let flushed = |w: &Record| {
            let mut clients = (0..).map(ClientId).zip(&clients);
            clients.any(|(id, (flushed, _))| w.ended < *flushed && w.doubted & id.bit() == 0)
        };
        let durable = |w: &Record| w.fua && w.ended < moment || flushed(w);
        let by_write = |w: &Record| w.submitted > end && w.is_definite() && durable(w);
        let by_read = |read: Observed| {
            let mut clients = clients.iter().filter(|(_, in_doubt)| !in_doubt);
            read.submitted > end && clients.any(|(flushed, _)| read.ended < *flushed)
        };
        self.touched(sector).any(by_write) || self.observed(sector).any(by_read)
    }

    /// The end times of everything that could have left `content`; H4, H5.
    fn sources(&self, sector: u64, content: Content, before: Tick) -> impl Iterator<Item = Tick> {
        let first = (self.baseline[sector as usize] == content).then_some(0);
        let seen = self.observed(sector).filter(move |seen| seen.content == content);
        let writes = self.touched(sector).filter(move |w| w.submitted < before);
        let writes = writes.filter(move |w| self.may_leave(w, sector, content));
        first.into_iter().chain(seen.map(|seen| seen.ended)).chain(writes.map(|w| w.ended))
    }

    fn may_leave(&self, write: &Record, sector: u64, content: Content) -> bool {
        match write.op {
            Op::Write => content == Content::Write { id: write.id, seed: self.seed },
            Op::WriteZeroes => content == Content::Zero,
            Op::Discard => match content {
                Content::Zero | Content::Garbage => true,
                Content::Write { id, seed } => seed == self.seed && id < self.next_id,
                Content::Other(_) => {
                    self.ever.get(&sector).is_some_and(|ever| ever.contains(&content))
                }
                Content::Misplaced { .. } => false,
            },
            Op::Read | Op::Flush => false,
        }
    }

    /// H1, H9.
    fn may_read(&self, sector: u64, content: Content, read: &Record) -> bool {
        let mut sources = self.sources(sector, content, read.ended);
        sources.any(|end| {
            let durably = || self.durably_superseded(sector, end, read.submitted);
            !self.superseded(sector, end, read.submitted) || self.rolls_back && !durably()
        })
    }

    /// H2: true if every write that the read could have met succeeded and left known contents.
    fn is_quiet(&self, sector: u64, read: &Record) -> bool {
        let whole = |w: &Record| w.is_definite() && w.ended < read.submitted;
        self.touched(sector)
            .all(|write| whole(write) || self.superseded(sector, write.ended, read.submitted))
    }

    fn check_after_crash(&self, contents: &[Content]) -> Result<(), Violation> {
        assert_eq!(contents.len(), self.baseline.len(), "the whole disk is judged");
        for (sector, &content) in (0u64..).zip(contents) {
            let mut sources = self.sources(sector, content, NEVER);
            if !sources.any(|end| !self.durably_superseded(sector, end, NEVER)) {
                let what = format!("a crash (last flush submitted {})", self.flushed());
                return Err(Violation(self.describe(sector, content, &what)));
            }
        }
        Ok(())
    }

    fn check_after_kill(&self, contents: &[Content]) -> Result<(), Violation> {
        let whole = SectorRange::new(Sector(0), SectorCount(contents.len() as u64));
        let now = self.now + 1;
        let read = Record { ended: now, ..Record::new(Op::Read, whole, false, 0, now) };
        for (sector, &content) in (0u64..).zip(contents) {
            if !self.may_read(sector, content, &read) {
                return Err(Violation(self.describe(sector, content, "a kill")));
            }
        }
        Ok(())
    }

    fn describe(&self, sector: u64, content: Content, what: &str) -> String {
        let mut text = format!(
            "sector {sector} after {what} holds {content:?}; it began with {:?}",
            self.baseline[sector as usize]
        );
        for write in self.touched(sector) {
            let fua = if write.fua { " FUA" } else { "" };
            let doubted = if write.doubted == 0 { "" } else { ", in doubt" };
            let state = match write.ended {
                NEVER => "in flight".to_owned(),
                ended if write.ok => format!("succeeded {ended}"),
                ended => format!("failed {ended}"),
            };
            let (op, id, range, submitted) = (write.op, write.id, write.range, write.submitted);
            text +=
                &format!("\n  {op:?}{fua} {id} {range}: submitted {submitted}, {state}{doubted}");
        }
        for seen in self.observed(sector) {
            text += &format!("\n  read as {:?}: {}..{}", seen.content, seen.submitted, seen.ended);
        }
        text
    }
}

#[cfg(test)]
mod tests;

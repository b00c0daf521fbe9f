//! [`Session`]: the requests of one client to one NBD server, over connections that may be lost. It
//! knows neither sockets nor bytes. Its user sends what the session names next, and gives it the
//! answers.
//!
//! A server may lose writes that it has answered and not flushed, when it is killed. A client that
//! connects again sees no difference. So:
//!
//! - N1. Of two writes that overlap (a write, write-zeroes or trim each), the later one is sent
//!   when the earlier one was answered. A write that is sent again can thus overwrite no other.
//! - N2. A session that *keeps* holds each write that was answered, with a copy of its data, until
//!   a flush succeeds that was submitted after the answer, or until later writes were answered that
//!   cover it: of a write that is covered in part, the rest stays. A FUA write is durable: it
//!   covers others, and is not held. So no two kept writes overlap, and each sector of them is the
//!   last answered one.
//! - N3. When a connection is lost, nothing is sent until there is another one. Then, in this
//!   order: the kept writes, the requests without an answer in their order, what came since. The
//!   second waits for the answers to the first.
//! - N4. The memory of writes that are kept or under way is bounded. At three quarters the session
//!   flushes by itself; a write that finds it full waits. None is forgotten.
//!   A flush that fails ends the writes that wait, with its error.
//! - N5. A session that does not keep tells of a connection that was lost while answered writes
//!   were neither flushed nor FUA: they may be gone. So does one whose kept write is refused by the
//!   next server, and one whose own flush failed.
//! - N6. A session begins with a flush of its own, and sends nothing else until that was answered.
//!   A client before it may have been killed and have left writes that are volatile at the server.
//!   What is read of them must not be lost with the server later: a session keeps its own writes
//!   only.
//! - N7. One flush is under way at a time, the session's own or the owner's: a server tells a
//!   failed flush to one of two, and the other's success would cover what is lost.
//! - N8. A connection that is lost while the kept writes are sent again has the next one send them
//!   in groups, each followed by a flush, after which the group is not kept any more. A group is
//!   half as large as what was lost before, so that connections which are always lost get on, too.
//! - N9. A connection that is lost before any answer has the next one send half as many requests at
//!   once, down to one. Each answer doubles that. So connections that last for a few messages get
//!   on, however many requests wait.
//! - N10. A session whose client finds that another one has opened the export is never connected
//!   again. What it kept is lost, and told (N5).
//! - N11. If there are several connections at a time, all are to one server that offers them
//!   (`CAN_MULTI_CONN`): a flush over one covers what was answered over any. The loss of one is
//!   the loss of all.
//!
//! Why N3 restores what a client may rely on: by N1 the server took overlapping writes in the order
//! of their answers. For each sector it holds after the loss the last answered write, or an older
//! one that a flush or FUA made durable; in the second case the last answered one is kept. Sending
//! the kept ones leads to the last answered state, and no request reads before that. A client that
//! is killed while it sends again has made no sector older than the server had it, but for writes
//! that were not answered. (A write that is kept whole, although a part of it is older than a FUA
//! write, would do that.)

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use cairn_block::{Flags, IoError, IoResult, Op, Sector, SectorCount, SectorRange, Segs, mutants};

/// That of a flush.
const NOWHERE: SectorRange = SectorRange::new(Sector(0), SectorCount::ZERO);

/// A request for the server, for the owner `T`, with data `D`.
#[derive(Debug)]
pub struct Ask<T, D> {
    /// What to do. Reads have memory for their data.
    pub what: What,
    /// Where; empty for a flush.
    pub range: SectorRange,
    /// FUA and the like.
    pub flags: Flags,
    /// What is written, or the place of what is read.
    pub data: D,
    /// Named when it ends.
    pub owner: T,
}

/// What is asked of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// An operation of a disk.
    Op(Op),
    /// The state of extents.
    Status,
}

impl<T, D> Ask<T, D> {
    fn writes(&self) -> bool {
        matches!(self.what, What::Op(Op::Write | Op::Discard | Op::WriteZeroes))
    }

    fn is_flush(&self) -> bool {
        self.what == What::Op(Op::Flush)
    }
}

/// What the session is told to whom.
#[derive(Debug)]
pub enum Told<T, D> {
    /// The request of this owner has ended.
    Ended(T, IoResult, D),
    /// Answered writes may be gone (N5).
    Lost,
}

/// A request that is sent, and what the session has to know of it.
struct Sent<T, D> {
    ask: Sending<T, D>,
    /// How many writes were answered when a flush was submitted.
    after: u64,
}

/// What is sent.
enum Sending<T, D> {
    Asked(Ask<T, D>),
    /// The first flush (N6).
    First,
    /// A flush of the session's own (N4).
    OwnFlush,
    /// A kept write, by its start.
    Again(u64),
    /// A flush of those that were sent again (N8).
    AgainFlush,
}

/// A write that was answered.
struct Kept<D> {
    /// Its place in the order of the answers.
    number: u64,
    what: What,
    range: SectorRange,
    flags: Flags,
    data: D,
}

/// A request as it is put on the wire.
pub struct Wire<'a, D> {
    /// Echoed by the answer.
    pub cookie: u64,
    /// What to do.
    pub what: What,
    /// Where.
    pub range: SectorRange,
    /// FUA and the like.
    pub flags: Flags,
    /// What is written, or the place of what is read.
    pub data: Option<&'a D>,
}

/// What a session does for writes that were answered and not flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Care {
    /// It keeps them, within so many bytes.
    Keep(u64),
    /// It tells of those that may be lost.
    Tell,
    /// Nothing: the server has made durable what it has answered.
    Nothing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Down,
    /// N6; true if the flush was sent.
    First(bool),
    /// The kept writes before this start were sent again.
    Replay(u64),
    Up,
}

/// See the module's description.
pub struct Session<T, D> {
    phase: Phase,
    next_cookie: u64,
    /// To be sent, in order; none of the writes conflicts with an earlier one.
    ready: VecDeque<(Sending<T, D>, u64)>,
    /// Writes that wait for one before them (N1), in order.
    blocked: VecDeque<Ask<T, D>>,
    /// Writes that wait for memory (N4), with all writes after them.
    full: VecDeque<Ask<T, D>>,
    /// Sent and not answered.
    sent: BTreeMap<u64, Sent<T, D>>,
    /// Writes that are ready or sent: start to end. No two overlap.
    active: BTreeMap<u64, u64>,
    /// By their starts; no two overlap.
    kept: BTreeMap<u64, Kept<D>>,
    /// For each number, how many parts of the write are kept, and what the whole of it costs: the
    /// parts share its memory.
    parts: BTreeMap<u64, (u32, u64)>,
    /// How many writes were answered, and how many of these a flush covered.
    answered: u64,
    flushed: u64,
    /// Bytes of writes that are kept or under way.
    bytes: u64,
    care: Care,
    own_flush: bool,
    /// The most kept writes that are sent again before a flush (N8).
    group: usize,
    /// How many of these have no answer, and the starts of those that were answered.
    resending: usize,
    resent: Vec<u64>,
    /// The most requests without an answer, and whether one was answered over this connection (N9).
    window: usize,
    has_answer: bool,
    /// The owner's flushes that are ready or sent.
    flushes: u32,
    /// Those that wait for the session's own (N7).
    held: VecDeque<(Ask<T, D>, u64)>,
    /// N6 is done.
    has_begun: bool,
    counts: Counts,
}

/// What the losses of connections have cost so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Bytes of kept writes that a server has answered again (N3).
    pub replayed_bytes: u64,
    /// Requests that had no answer when their connection was lost.
    pub unanswered: u64,
}

/// Data of writes.
pub trait Data: Clone {
    /// These bytes of it, without a copy.
    fn part(&self, bytes: Range<usize>) -> Self;
}

impl Data for Segs {
    fn part(&self, bytes: Range<usize>) -> Segs {
        self.slice(bytes.start, bytes.len())
    }
}

impl<T, D: Data> Session<T, D> {
    /// A session without a connection.
    pub fn new(care: Care) -> Session<T, D> {
        Session {
            phase: Phase::Down,
            next_cookie: 1,
            ready: VecDeque::new(),
            blocked: VecDeque::new(),
            full: VecDeque::new(),
            sent: BTreeMap::new(),
            active: BTreeMap::new(),
            kept: BTreeMap::new(),
            parts: BTreeMap::new(),
            answered: 0,
            flushed: 0,
            bytes: 0,
            care,
            own_flush: false,
            group: usize::MAX,
            resending: 0,
            resent: Vec::new(),
            window: usize::MAX,
            has_answer: false,
            flushes: 0,
            held: VecDeque::new(),
            has_begun: care == Care::Nothing || mutants::skips("session: flush at the beginning"),
            counts: Counts::default(),
        }
    }

    fn limit(&self) -> Option<u64> {
        match self.care {
            Care::Keep(bytes) => Some(bytes),
            Care::Tell | Care::Nothing => None,
        }
    }

    /// True if it keeps writes: their data must not change any more when they are submitted.
    pub fn keeps(&self) -> bool {
        self.limit().is_some()
    }

    /// Bytes that a loss of the connection would send again.
    pub fn kept_bytes(&self) -> u64 {
        self.kept.values().map(|kept| cost(kept.what, kept.range)).sum()
    }

    /// The memory of writes that are kept or under way, in bytes (N4).
    pub fn held_bytes(&self) -> u64 {
        self.bytes
    }

    /// What the losses of connections have cost so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// True if requests wait for an answer, or to be sent.
    pub fn is_busy(&self) -> bool {
        !(self.sent.is_empty()
            && self.ready.is_empty()
            && self.blocked.is_empty()
            && self.full.is_empty()
            && self.held.is_empty())
    }

    /// True if an owner waits for the end of a request: the session's own do not count.
    pub fn is_waited_for(&self) -> bool {
        let is_asked = |sending: &Sending<T, D>| matches!(sending, Sending::Asked(_));
        let waits = !(self.blocked.is_empty() && self.full.is_empty() && self.held.is_empty());
        waits
            || self.ready.iter().any(|(sending, _)| is_asked(sending))
            || self.sent.values().any(|sent| is_asked(&sent.ask))
    }

    /// Takes a request.
    pub fn submit(&mut self, ask: Ask<T, D>) {
        if !ask.writes() {
            let after = self.answered;
            return match ask.is_flush() && self.own_flush {
                true => self.held.push_back((ask, after)),
                false => self.make_flush_ready(ask, after),
            };
        }
        if !self.full.is_empty() || !self.has_room(&ask) {
            self.full.push_back(ask);
            return self.flush_by_itself();
        }
        self.admit(ask);
    }

    fn has_room(&self, ask: &Ask<T, D>) -> bool {
        let cost = cost(ask.what, ask.range);
        // One that is larger than all there is passes alone.
        self.limit().is_none_or(|limit| self.bytes == 0 || self.bytes + cost <= limit)
    }

    fn admit(&mut self, ask: Ask<T, D>) {
        self.bytes += cost(ask.what, ask.range);
        if self.limit().is_some_and(|limit| self.bytes >= limit / 4 * 3) {
            self.flush_by_itself();
        }
        let waits = self.conflicts(ask.range)
            || self.blocked.iter().any(|before| before.range.overlaps(ask.range));
        match waits {
            true => self.blocked.push_back(ask),
            false => self.make_ready(ask),
        }
    }

    fn make_ready(&mut self, ask: Ask<T, D>) {
        self.active.insert(ask.range.start.0, ask.range.end().0);
        self.ready.push_back((Sending::Asked(ask), 0));
    }

    /// A flush, or a request that is no write.
    fn make_flush_ready(&mut self, ask: Ask<T, D>, after: u64) {
        self.flushes += u32::from(ask.is_flush());
        self.ready.push_back((Sending::Asked(ask), after));
    }

    /// True if a write that is ready or sent overlaps.
    fn conflicts(&self, range: SectorRange) -> bool {
        let before = self.active.range(..range.end().0).next_back();
        before.is_some_and(|(_, end)| *end > range.start.0)
    }

    fn flush_by_itself(&mut self) {
        if !self.own_flush && self.flushes == 0 && self.flushed < self.answered {
            self.own_flush = true;
            self.ready.push_back((Sending::OwnFlush, self.answered));
        }
    }

    /// The next request for the wire, if one may be sent now.
    pub fn take_next(&mut self) -> Option<Wire<'_, D>> {
        if self.sent.len() >= self.window {
            return None;
        }
        let (ask, after) = match self.phase {
            Phase::Down | Phase::First(true) => return None,
            Phase::First(false) => {
                self.phase = Phase::First(true);
                (Sending::First, 0)
            }
            Phase::Replay(_) if self.overtakes() => self.ready.pop_front()?,
            Phase::Replay(from) => (self.next_again(from)?, 0),
            Phase::Up => self.ready.pop_front()?,
        };
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.sent.insert(cookie, Sent { ask, after });
        self.sent(cookie)
    }

    /// A request that awaits its answer, as it is on the wire.
    pub fn sent(&self, cookie: u64) -> Option<Wire<'_, D>> {
        let wire = |what, range, flags, data| Wire { cookie, what, range, flags, data };
        Some(match &self.sent.get(&cookie)?.ask {
            Sending::Asked(ask) => wire(ask.what, ask.range, ask.flags, Some(&ask.data)),
            Sending::First | Sending::OwnFlush | Sending::AgainFlush => {
                wire(What::Op(Op::Flush), NOWHERE, Flags::empty(), None)
            }
            Sending::Again(start) => {
                let kept = &self.kept[start];
                wire(kept.what, kept.range, kept.flags, Some(&kept.data))
            }
        })
    }

    /// True if a request may be sent now.
    pub fn has_next(&self) -> bool {
        match self.phase {
            Phase::Down => false,
            _ if self.sent.len() >= self.window => false,
            Phase::First(is_sent) => !is_sent,
            Phase::Replay(_) if self.overtakes() => true,
            Phase::Replay(from) => match self.is_group_full() {
                true => self.may_flush_group(),
                false => self.kept.range(from..).next().is_some(),
            },
            Phase::Up => !self.ready.is_empty(),
        }
    }

    /// Requests that were sent and have no answer.
    pub fn unanswered(&self) -> usize {
        self.sent.len()
    }

    /// How many requests may be sent now: at least one if [`Session::has_next`]. While kept writes
    /// are sent again it may say too many.
    pub fn next_count(&self) -> usize {
        let count = match self.phase {
            Phase::Down => 0,
            Phase::First(is_sent) => usize::from(!is_sent),
            Phase::Replay(_) => self.kept.len().clamp(1, self.group),
            Phase::Up => self.ready.len(),
        };
        count.min(self.window.saturating_sub(self.sent.len()))
    }

    /// For a canary: true if what was not answered does not wait for what is sent again.
    fn overtakes(&self) -> bool {
        mutants::skips("session: wait for what is sent again") && !self.ready.is_empty()
    }

    fn is_group_full(&self) -> bool {
        self.resending + self.resent.len() >= self.group
    }

    /// True if each write of the group was answered, and its flush was not sent yet.
    fn may_flush_group(&self) -> bool {
        self.resending == 0 && self.sent.is_empty()
    }

    fn next_again(&mut self, from: u64) -> Option<Sending<T, D>> {
        if self.is_group_full() {
            return self.may_flush_group().then_some(Sending::AgainFlush);
        }
        let (start, _) = self.kept.range(from..).next()?;
        let start = *start;
        self.phase = Phase::Replay(start + 1);
        self.resending += 1;
        Some(Sending::Again(start))
    }

    /// The server has answered; false if nothing of this cookie was sent.
    pub fn answered(
        &mut self,
        cookie: u64,
        result: IoResult,
        tell: &mut dyn FnMut(Told<T, D>),
    ) -> bool {
        let Some(Sent { ask, after }) = self.sent.remove(&cookie) else { return false };
        (self.window, self.has_answer) = (self.window.saturating_mul(2), true);
        match ask {
            Sending::Asked(ask) if ask.writes() => self.end_write(ask, result, tell),
            Sending::Asked(ask) => {
                if ask.is_flush() {
                    self.flushes -= 1;
                    result.is_ok().then(|| self.forget(after));
                }
                tell(Told::Ended(ask.owner, result, ask.data));
            }
            Sending::First => {
                if result.is_err() {
                    tell(Told::Lost);
                }
                self.has_begun = true;
                self.begin_replay();
            }
            Sending::OwnFlush => {
                self.own_flush = false;
                match result {
                    Ok(()) => self.forget(after),
                    // What it may have dropped cannot be told from what it has not.
                    Err(error) => {
                        tell(Told::Lost);
                        self.fail_full(error, tell);
                    }
                }
                for (ask, after) in std::mem::take(&mut self.held) {
                    self.make_flush_ready(ask, after);
                }
            }
            Sending::Again(start) => {
                self.resending -= 1;
                match result {
                    Ok(()) => {
                        let bytes = self.kept.get(&start).map(|kept| kept.range.to_bytes());
                        self.counts.replayed_bytes += bytes.unwrap_or(0);
                        self.resent.push(start);
                    }
                    Err(_) => {
                        tell(Told::Lost);
                        self.drop_kept(start);
                    }
                }
                self.end_replay();
            }
            Sending::AgainFlush => {
                let group = std::mem::take(&mut self.resent);
                match result {
                    Ok(()) => group.into_iter().for_each(|start| self.drop_kept(start)),
                    Err(_) => tell(Told::Lost),
                }
                self.end_replay();
            }
        }
        self.let_in();
        true
    }

    fn end_write(&mut self, ask: Ask<T, D>, result: IoResult, tell: &mut dyn FnMut(Told<T, D>)) {
        self.active.remove(&ask.range.start.0);
        let is_volatile = result.is_ok() && !ask.flags.contains(Flags::FUA);
        if result.is_ok() {
            self.uncover(ask.range);
        }
        match is_volatile && self.keeps() {
            true => self.keep(&ask),
            false => self.bytes -= cost(ask.what, ask.range),
        }
        self.answered += u64::from(is_volatile);
        tell(Told::Ended(ask.owner, result, ask.data));
        let mut blocked = std::mem::take(&mut self.blocked);
        while let Some(next) = blocked.pop_front() {
            let waits = self.conflicts(next.range)
                || self.blocked.iter().any(|before| before.range.overlaps(next.range));
            match waits {
                true => self.blocked.push_back(next),
                false => self.make_ready(next),
            }
        }
    }

    /// A write was answered that is volatile.
    fn keep(&mut self, ask: &Ask<T, D>) {
        let (what, range, flags, data) = (ask.what, ask.range, ask.flags, ask.data.clone());
        let number = self.answered;
        self.parts.insert(number, (1, cost(what, range)));
        self.kept.insert(range.start.0, Kept { number, what, range, flags, data });
    }

    /// Keeps nothing here any more: it was written again.
    fn uncover(&mut self, range: SectorRange) {
        let overlapping = |kept: &BTreeMap<u64, Kept<D>>| {
            let (start, last) = kept.range(..range.end().0).next_back()?;
            (last.range.end() > range.start).then_some(*start)
        };
        while let Some(start) = overlapping(&self.kept) {
            let Some(kept) = self.kept.remove(&start) else { return };
            let (before, after) =
                ((kept.range.start, range.start), (range.end(), kept.range.end()));
            for (from, to) in [before, after].into_iter().filter(|(from, to)| from < to) {
                let rest = SectorRange::new(from, to - from);
                self.keep_part(&kept, rest);
            }
            self.drop_part(kept.number);
        }
    }

    fn keep_part(&mut self, kept: &Kept<D>, range: SectorRange) {
        let data = match kept.what {
            What::Op(Op::Write) => {
                let from = (range.start - kept.range.start).to_bytes() as usize;
                kept.data.part(from..from + range.to_bytes() as usize)
            }
            _ => kept.data.clone(),
        };
        self.kept.insert(range.start.0, Kept { range, data, ..*kept });
        if let Some((parts, _)) = self.parts.get_mut(&kept.number) {
            *parts += 1;
        }
    }

    /// What is kept from this start on is not kept any more.
    fn drop_kept(&mut self, start: u64) {
        if let Some(kept) = self.kept.remove(&start) {
            self.drop_part(kept.number);
        }
    }

    /// A part of this write is not kept any more.
    fn drop_part(&mut self, number: u64) {
        let Some((parts, cost)) = self.parts.get_mut(&number) else { return };
        *parts -= 1;
        if *parts == 0 {
            self.bytes -= *cost;
            self.parts.remove(&number);
        }
    }

    /// A flush has made durable what was answered before this number.
    fn forget(&mut self, before: u64) {
        let skips = mutants::skips("session: count of what a flush covers");
        let before = if skips { self.answered } else { before };
        self.kept.retain(|_, kept| kept.number >= before);
        let later = self.parts.split_off(&before);
        let costs = std::mem::replace(&mut self.parts, later);
        self.bytes -= costs.values().map(|(_, cost)| cost).sum::<u64>();
        self.flushed = self.flushed.max(before);
    }

    /// Lets in what waited for memory.
    fn let_in(&mut self) {
        while self.full.front().is_some_and(|ask| self.has_room(ask)) {
            if let Some(ask) = self.full.pop_front() {
                self.admit(ask);
            }
        }
        if !self.full.is_empty() {
            self.flush_by_itself();
        }
    }

    /// The connection is lost. What has no answer is sent again over the next one.
    pub fn lost(&mut self, tell: &mut dyn FnMut(Told<T, D>)) {
        if matches!(self.phase, Phase::Replay(_)) {
            self.group = (self.group.min(self.kept.len()) / 2).max(1);
        }
        self.phase = Phase::Down;
        let sent = std::mem::take(&mut self.sent);
        if !self.has_answer && !sent.is_empty() {
            self.window = (sent.len() / 2).max(1);
        }
        for (_, Sent { ask, after }) in sent.into_iter().rev() {
            self.counts.unanswered += u64::from(matches!(ask, Sending::Asked(_)));
            if matches!(ask, Sending::Asked(_) | Sending::OwnFlush) {
                self.ready.push_front((ask, after));
            }
        }
        if self.care == Care::Tell && self.flushed < self.answered {
            self.flushed = self.answered;
            if !mutants::skips("session: count of a lost connection") {
                tell(Told::Lost);
            }
        }
    }

    /// There is a connection.
    pub fn connected(&mut self) {
        debug_assert!(self.phase == Phase::Down && self.sent.is_empty());
        self.has_answer = false;
        match self.has_begun {
            true => self.begin_replay(),
            false => self.phase = Phase::First(false),
        }
    }

    fn begin_replay(&mut self) {
        if mutants::skips("session: another write of what is kept") {
            self.phase = Phase::Up;
            return;
        }
        self.phase = Phase::Replay(0);
        self.resending = 0;
        self.resent.clear();
        self.end_replay();
    }

    fn end_replay(&mut self) {
        let Phase::Replay(from) = self.phase else { return };
        if self.sent.is_empty() && self.kept.range(from..).next().is_none() {
            self.phase = Phase::Up;
            self.group = usize::MAX;
        }
    }

    /// Another client has opened the export: nothing is sent any more (N10). What waits is failed
    /// by [`Session::give_up`].
    pub fn fence(&mut self, tell: &mut dyn FnMut(Told<T, D>)) {
        debug_assert!(self.phase == Phase::Down && self.sent.is_empty());
        if !self.kept.is_empty() {
            tell(Told::Lost);
        }
        self.forget(self.answered);
    }

    /// Fails all that waits: no connection came in time. What is kept stays.
    pub fn give_up(&mut self, error: IoError, tell: &mut dyn FnMut(Told<T, D>)) {
        debug_assert!(self.phase == Phase::Down && self.sent.is_empty());
        let ready = std::mem::take(&mut self.ready).into_iter();
        let asked = ready.filter_map(|(sending, _)| match sending {
            Sending::Asked(ask) => Some(ask),
            Sending::First | Sending::OwnFlush | Sending::Again(_) | Sending::AgainFlush => None,
        });
        (self.own_flush, self.flushes) = (false, 0);
        let held = std::mem::take(&mut self.held).into_iter().map(|(ask, _)| ask);
        let blocked = std::mem::take(&mut self.blocked).into_iter();
        for ask in asked.chain(held).chain(blocked) {
            if ask.writes() {
                self.bytes -= cost(ask.what, ask.range);
            }
            tell(Told::Ended(ask.owner, Err(error), ask.data));
        }
        self.active.clear();
        self.fail_full(error, tell);
    }

    fn fail_full(&mut self, error: IoError, tell: &mut dyn FnMut(Told<T, D>)) {
        for ask in std::mem::take(&mut self.full) {
            tell(Told::Ended(ask.owner, Err(error), ask.data));
        }
    }

    /// The owner is gone: nothing is sent any more. True if what is kept may be lost by that.
    pub fn close(&mut self) -> bool {
        self.phase = Phase::Down;
        !self.kept.is_empty()
    }
}

/// What a write takes of the memory, in bytes.
fn cost(what: What, range: SectorRange) -> u64 {
    /// Of the entry itself, and of the one more that it makes of another by covering its middle.
    const ENTRY_BYTES: u64 = 256;
    /// The least memory of a buffer.
    const PAGE_BYTES: u64 = 4096;
    let data = if what == What::Op(Op::Write) { range.to_bytes() } else { 0 };
    ENTRY_BYTES + data.next_multiple_of(PAGE_BYTES)
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;

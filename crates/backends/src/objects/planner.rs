//! [`Planner`]: which ranges of an object are asked for, and what they answer. Pure: no socket, no
//! clock.
//!
//! A read waits for the bytes that are not at hand. Waiting ranges that touch are joined into one
//! request to the server. A run of reads in order has what follows it fetched ahead.
//!
//! - P1. What is kept, what is under way and what is wanted overlap nowhere: no byte is fetched
//!   twice at one time, and each byte of a read has one source.
//! - P2. Bytes that are fetched ahead, kept or under way, are at most [`AHEAD_BYTES_MAX`]. All
//!   others under way are those of reads that wait.
//! - P3. A read is answered once: with all its bytes, or with the failure of one of its ranges.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use bytes::Bytes;

/// The longest range that one request asks for.
pub const FETCH_BYTES_MAX: u64 = 4 << 20;

/// How many requests to the server are under way at one time.
pub const FLIGHTS_MAX: usize = 8;

/// Memory for what is fetched ahead.
pub const AHEAD_BYTES_MAX: u64 = 8 << 20;

/// A run of this length has what follows it fetched ahead.
const RUN_BYTES_MIN: u64 = 128 << 10;

/// How far ahead, at most.
const WINDOW_BYTES_MAX: u64 = 2 << 20;

/// How many runs are known at one time.
const RUNS_MAX: usize = 8;

/// The data of a read: pieces, each with its place in it.
pub type Pieces = Vec<(usize, Bytes)>;

/// The end of a read: its ticket, and its bytes unless it has failed.
pub struct Answer<T> {
    /// What the read was submitted with.
    pub ticket: T,
    /// None if a range of it could not be read.
    pub data: Option<Pieces>,
}

/// A range to ask the server for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fetch {
    /// For [`Planner::ended`].
    pub number: u64,
    /// Its bytes.
    pub range: Range<u64>,
}

/// A read that waits.
struct Waiting<T> {
    ticket: T,
    range: Range<u64>,
    pieces: Pieces,
    /// What has not come, in order.
    missing: Vec<Range<u64>>,
}

/// A range that is wanted or under way, with the reads that wait for it.
struct Part {
    range: Range<u64>,
    readers: Vec<u64>,
    is_ahead: bool,
}

/// Reads in order.
struct Run {
    bytes: u64,
    /// The end of the last read.
    at: u64,
    /// The end of what was fetched ahead.
    ahead: u64,
}

/// See the module's description.
pub struct Planner<T> {
    bytes: u64,
    kept: VecDeque<(u64, Bytes)>,
    under_way: HashMap<u64, Part>,
    wanted: VecDeque<Part>,
    reads: HashMap<u64, Waiting<T>>,
    answers: Vec<Answer<T>>,
    /// The newest one is the last.
    runs: VecDeque<Run>,
    next: u64,
}

fn overlap(a: &Range<u64>, b: &Range<u64>) -> Range<u64> {
    let start = a.start.max(b.start);
    start..a.end.min(b.end).max(start)
}

fn length(range: &Range<u64>) -> u64 {
    range.end - range.start
}

fn range_of((at, data): &(u64, Bytes)) -> Range<u64> {
    *at..*at + data.len() as u64
}

impl<T> Planner<T> {
    /// A planner for an object of this length.
    pub fn new(bytes: u64) -> Planner<T> {
        Planner {
            bytes,
            kept: VecDeque::new(),
            under_way: HashMap::new(),
            wanted: VecDeque::new(),
            reads: HashMap::new(),
            answers: Vec::new(),
            runs: VecDeque::new(),
            next: 0,
        }
    }

    /// Keeps bytes that were fetched before there was a read.
    pub fn keep(&mut self, at: u64, data: Bytes) {
        self.kept.push_back((at, data));
        self.evict();
    }

    /// Takes a read. What lies behind the end of the object is not fetched.
    pub fn submit(&mut self, ticket: T, range: Range<u64>) {
        let range = overlap(&range, &(0..self.bytes));
        let number = self.number();
        let mut read = Waiting {
            ticket,
            range: range.clone(),
            pieces: Pieces::new(),
            missing: vec![range.clone()],
        };
        for kept in &self.kept {
            take(&mut read, kept);
        }
        let is_whole = read.missing.iter().all(Range::is_empty);
        self.reads.insert(number, read);
        if is_whole {
            self.answer(number, true);
        } else {
            self.attach(number, &range);
            for gap in self.gaps(&range) {
                let readers = vec![number];
                self.wanted.push_back(Part { range: gap, readers, is_ahead: false });
            }
        }
        self.follow(&range);
    }

    /// Has a read wait for the parts that have bytes of it.
    fn attach(&mut self, number: u64, range: &Range<u64>) {
        for part in self.under_way.values_mut().chain(&mut self.wanted) {
            if !overlap(&part.range, range).is_empty() {
                part.readers.push(number);
            }
        }
    }

    /// The parts of a range that are neither kept, nor under way, nor wanted (P1).
    fn gaps(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let parts = self.under_way.values().chain(&self.wanted).map(|part| part.range.clone());
        let mut known: Vec<_> = parts.chain(self.kept.iter().map(range_of)).collect();
        known.sort_by_key(|range| range.start);
        let (mut gaps, mut at) = (Vec::new(), range.start);
        for known in known.iter().map(|known| overlap(known, range)).filter(|it| !it.is_empty()) {
            if at < known.start {
                gaps.push(at..known.start);
            }
            at = at.max(known.end);
        }
        if at < range.end {
            gaps.push(at..range.end);
        }
        gaps
    }

    /// Wants what follows a run of reads, once it is long enough.
    fn follow(&mut self, read: &Range<u64>) {
        let continues =
            |run: &Run| run.at == read.start || (run.at..run.ahead).contains(&read.start);
        let mut run = match self.runs.iter().position(continues) {
            Some(index) => self.runs.remove(index),
            None => None,
        }
        .unwrap_or(Run { bytes: 0, at: read.end, ahead: read.end });
        run.bytes += length(read);
        run.at = run.at.max(read.end);
        let window = run.bytes.min(WINDOW_BYTES_MAX);
        let ahead = run.ahead.max(run.at)..(run.at + window).min(self.bytes);
        // In pieces of some length: each of them is a request.
        let is_worth = ahead.start < ahead.end
            && (length(&ahead) >= window / 2 || ahead.end == self.bytes)
            && run.bytes >= RUN_BYTES_MIN;
        if is_worth && self.ahead_under_way() + length(&ahead) <= AHEAD_BYTES_MAX {
            for gap in self.gaps(&ahead) {
                let part = Part { range: gap, readers: Vec::new(), is_ahead: true };
                self.wanted.push_back(part);
            }
            run.ahead = ahead.end;
        }
        self.runs.push_back(run);
        if self.runs.len() > RUNS_MAX {
            self.runs.pop_front();
        }
        self.evict();
    }

    fn ahead_under_way(&self) -> u64 {
        let parts = self.under_way.values().chain(&self.wanted);
        parts.filter(|part| part.is_ahead).map(|part| length(&part.range)).sum()
    }

    /// Forgets the oldest of what is kept, until there is room for what is under way (P2).
    fn evict(&mut self) {
        let mut kept: u64 = self.kept.iter().map(|(_, data)| data.len() as u64).sum();
        let room = AHEAD_BYTES_MAX.saturating_sub(self.ahead_under_way());
        while kept > room
            && let Some((_, data)) = self.kept.pop_front()
        {
            kept -= data.len() as u64;
        }
    }

    /// The next range to ask for: for reads first, the oldest one first.
    pub fn start(&mut self) -> Option<Fetch> {
        if self.under_way.len() >= FLIGHTS_MAX {
            return None;
        }
        let first = self.wanted.iter().position(|part| !part.readers.is_empty()).unwrap_or(0);
        let mut part = self.wanted.remove(first)?;
        if length(&part.range) > FETCH_BYTES_MAX {
            let cut = part.range.start + FETCH_BYTES_MAX;
            let rest = Part { range: cut..part.range.end, readers: part.readers.clone(), ..part };
            part.range.end = cut;
            self.wanted.insert(first, rest);
        } else if !part.is_ahead {
            self.join(&mut part);
        }
        let (number, range) = (self.number(), part.range.clone());
        self.under_way.insert(number, part);
        Some(Fetch { number, range })
    }

    /// Adds what touches a part, as long as one request may ask for it.
    fn join(&mut self, part: &mut Part) {
        let touches = |part: &Part, other: &Part| {
            let (a, b) = (&part.range, &other.range);
            let is_short = length(a) + length(b) <= FETCH_BYTES_MAX;
            !other.is_ahead && is_short && (a.end == b.start || b.end == a.start)
        };
        while let Some(index) = self.wanted.iter().position(|other| touches(part, other))
            && let Some(other) = self.wanted.remove(index)
        {
            part.range =
                part.range.start.min(other.range.start)..part.range.end.max(other.range.end);
            let new = other.readers.iter().filter(|reader| !part.readers.contains(reader));
            let new: Vec<_> = new.copied().collect();
            part.readers.extend(new);
        }
    }

    /// A range has come, or has failed.
    pub fn ended(&mut self, number: u64, data: Option<Bytes>) {
        let Some(part) = self.under_way.remove(&number) else { return };
        // Bytes of another length than asked for are none.
        let data = data.filter(|data| data.len() as u64 == length(&part.range));
        let piece = data.map(|data| (part.range.start, data));
        for reader in part.readers {
            let Some(read) = self.reads.get_mut(&reader) else { continue };
            // A joined part may have bytes that the read has had from elsewhere.
            if read.missing.iter().all(|missing| overlap(missing, &part.range).is_empty()) {
                continue;
            }
            let is_over = piece.as_ref().is_none_or(|piece| {
                take(read, piece);
                read.missing.is_empty()
            });
            if is_over {
                self.answer(reader, piece.is_some());
            }
        }
        if let Some(piece) = piece.filter(|_| part.is_ahead) {
            self.kept.push_back(piece);
            self.evict();
        }
    }

    fn answer(&mut self, number: u64, is_good: bool) {
        if let Some(Waiting { ticket, pieces, .. }) = self.reads.remove(&number) {
            self.answers.push(Answer { ticket, data: is_good.then_some(pieces) });
        }
    }

    /// The reads that wait for a range that is under way.
    pub fn readers(&self, number: u64) -> impl Iterator<Item = &T> {
        let part = self.under_way.get(&number).into_iter();
        part.flat_map(|part| &part.readers)
            .filter_map(|reader| self.reads.get(reader))
            .map(|read| &read.ticket)
    }

    /// Fails the reads of the wanted ranges that only such reads wait for.
    pub fn fail_wanted(&mut self, is_overdue: impl Fn(&T) -> bool) {
        let reads = &self.reads;
        let is_over = |reader: &u64| reads.get(reader).is_none_or(|it| is_overdue(&it.ticket));
        let mut readers = Vec::new();
        self.wanted.retain(|part| {
            let is_failed = !part.readers.is_empty() && part.readers.iter().all(is_over);
            if is_failed {
                readers.extend(&part.readers);
            }
            !is_failed
        });
        for reader in readers {
            self.answer(reader, false);
        }
    }

    /// Fails every read that waits.
    pub fn fail_all(&mut self) {
        for number in self.reads.keys().copied().collect::<Vec<_>>() {
            self.answer(number, false);
        }
    }

    /// The reads that have ended since the last call.
    pub fn take_answers(&mut self) -> Vec<Answer<T>> {
        std::mem::take(&mut self.answers)
    }

    /// True if no read waits.
    pub fn is_idle(&self) -> bool {
        self.reads.is_empty() && self.answers.is_empty()
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// Gives a read what a piece has of it and what it does not have yet.
fn take<T>(read: &mut Waiting<T>, piece: &(u64, Bytes)) {
    let has = range_of(piece);
    for missing in std::mem::take(&mut read.missing) {
        let found = overlap(&has, &missing);
        if found.is_empty() {
            read.missing.push(missing);
            continue;
        }
        let data =
            piece.1.slice((found.start - has.start) as usize..(found.end - has.start) as usize);
        read.pieces.push(((found.start - read.range.start) as usize, data));
        let rest = [missing.start..found.start, found.end..missing.end];
        read.missing.extend(rest.into_iter().filter(|rest| !rest.is_empty()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use proptest::prelude::*;

    use super::*;

    const SIZE: u64 = 16 << 20;

    /// The bytes of a range of the object: each sector has its own.
    fn bytes_of(range: Range<u64>) -> Bytes {
        static ALL: OnceLock<Bytes> = OnceLock::new();
        let sectors = || (0..SIZE / 512).flat_map(|at| [(at.wrapping_mul(167) >> 2) as u8; 512]);
        ALL.get_or_init(|| sectors().collect()).slice(range.start as usize..range.end as usize)
    }

    fn fetches<T>(planner: &mut Planner<T>) -> Vec<(u64, u64)> {
        std::iter::from_fn(|| planner.start())
            .map(|fetch| (fetch.range.start, fetch.range.end))
            .collect()
    }

    fn check(range: &Range<u64>, answer: &Pieces) {
        let mut pieces: Vec<_> = answer.iter().collect();
        pieces.sort_by_key(|(at, _)| *at);
        let mut at = 0;
        for (start, data) in pieces {
            assert_eq!(*start, at, "each byte from one source");
            let from = range.start + at as u64;
            assert!(*data == bytes_of(from..from + data.len() as u64));
            at += data.len();
        }
        assert_eq!(at as u64, length(range));
    }

    #[test]
    fn reads_that_touch_are_one_request() {
        let mut planner = Planner::new(SIZE);
        for start in [8192, 0, 4096, 1 << 20] {
            planner.submit(start, start..start + 4096);
        }
        assert_eq!(fetches(&mut planner), [(0, 12288), (1 << 20, (1 << 20) + 4096)]);
        planner.ended(5, Some(bytes_of(0..12288)));
        let answers = planner.take_answers();
        assert_eq!(answers.len(), 3);
        for answer in answers {
            check(&(answer.ticket..answer.ticket + 4096), &answer.data.unwrap());
        }
    }

    #[test]
    fn a_read_of_what_is_under_way_asks_for_the_rest_alone() {
        let mut planner = Planner::new(SIZE);
        planner.submit('a', 0..8192);
        assert_eq!(fetches(&mut planner), [(0, 8192)]);
        planner.submit('b', 4096..12288);
        assert_eq!(fetches(&mut planner), [(8192, 12288)]);
    }

    #[test]
    fn joined_requests_have_a_longest_length() {
        let mut planner = Planner::new(SIZE);
        planner.submit('a', 0..(9 << 20));
        let asked = fetches(&mut planner);
        assert!(asked.iter().all(|(start, end)| end - start <= FETCH_BYTES_MAX), "{asked:?}");
        assert_eq!(asked[..2], [(0, 4 << 20), (4 << 20, 8 << 20)]);
    }

    #[test]
    fn a_run_is_fetched_ahead_and_single_reads_are_not() {
        let mut planner = Planner::new(SIZE);
        for start in [40, 3, 77, 12].map(|at| at << 16) {
            planner.submit(start, start..start + 65536);
        }
        assert_eq!(fetches(&mut planner).len(), 4, "no order in them");
        let mut planner = Planner::new(SIZE);
        let mut asked = 0;
        for start in (0..16 << 20).step_by(65536) {
            planner.submit(start, start..start + 65536);
            while let Some(fetch) = planner.start() {
                asked += 1;
                planner.ended(fetch.number, Some(bytes_of(fetch.range)));
            }
            let [answer] = &planner.take_answers()[..] else { panic!("a read waits") };
            check(&(start..start + 65536), answer.data.as_ref().unwrap());
        }
        assert!(asked < 40, "{asked} requests for 256 reads");
    }

    #[test]
    fn a_range_that_failed_fails_its_reads_and_no_others() {
        let mut planner = Planner::new(SIZE);
        planner.submit('a', 0..4096);
        planner.submit('b', 8192..12288);
        let [one, two] = [planner.start().unwrap(), planner.start().unwrap()];
        planner.ended(one.number, None);
        planner.ended(two.number, Some(bytes_of(8192..12287)));
        let failed = planner.take_answers();
        assert!(failed.len() == 2 && failed.iter().all(|answer| answer.data.is_none()));
        planner.submit('c', 0..4096);
        assert_eq!(fetches(&mut planner), [(0, 4096)], "it is asked for again");
    }

    #[test]
    fn a_wanted_range_fails_with_the_last_of_its_readers() {
        let mut planner = Planner::new(SIZE);
        for at in 0..FLIGHTS_MAX as u64 {
            planner.submit(at, at << 20..(at << 20) + 4096);
        }
        assert_eq!(fetches(&mut planner).len(), FLIGHTS_MAX);
        planner.submit(100, 12 << 20..(12 << 20) + 4096);
        planner.submit(101, 12 << 20..(12 << 20) + 8192);
        planner.submit(102, 13 << 20..(13 << 20) + 4096);
        planner.fail_wanted(|ticket| [0, 100, 102].contains(ticket));
        let failed: Vec<_> = planner.take_answers().iter().map(|it| it.ticket).collect();
        assert_eq!(failed, [102], "the range of 100 has another reader; that of 0 is under way");
        planner.fail_wanted(|ticket| *ticket >= 100);
        let mut failed: Vec<_> = planner.take_answers().iter().map(|it| it.ticket).collect();
        failed.sort();
        assert_eq!(failed, [100, 101]);
        assert_eq!(planner.wanted.len(), 0);
    }

    #[test]
    fn a_reader_that_comes_later_is_one_of_its_range() {
        let mut planner = Planner::new(SIZE);
        planner.submit('a', 0..4096);
        let fetch = planner.start().unwrap();
        planner.submit('b', 0..2048);
        assert_eq!(planner.readers(fetch.number).collect::<String>(), "ab");
        assert_eq!(planner.readers(99).count(), 0);
    }

    #[test]
    fn nothing_behind_the_end_is_asked_for() {
        let mut planner = Planner::new(1000);
        planner.submit('a', 512..1024);
        assert_eq!(fetches(&mut planner), [(512, 1000)]);
    }

    proptest! {
        /// Any reads, any order of answers: each read ends once with its bytes or a failure, and
        /// P2 holds.
        #[test]
        fn each_read_ends_once_with_its_own_bytes(
            steps in prop::collection::vec((0u64..1024, 1u64..80, 0u8..8), 1..200)
        ) {
            let (unit, size) = (16384, SIZE);
            let mut planner = Planner::new(size);
            let (mut open, mut ended, mut next) = (Vec::new(), 0, 0);
            for (index, (at, count, act)) in steps.iter().enumerate() {
                let start = if *act < 4 { next } else { at * unit % size };
                let range = start..(start + count * unit).min(size);
                next = range.end % size;
                planner.submit(range.clone(), range);
                open.extend(std::iter::from_fn(|| planner.start()));
                if !open.is_empty() && *act % 2 == 0 {
                    let one: Fetch = open.swap_remove(*at as usize % open.len());
                    let data = (*act != 6).then(|| bytes_of(one.range.clone()));
                    planner.ended(one.number, data);
                }
                let kept: u64 = planner.kept.iter().map(|(_, data)| data.len() as u64).sum();
                prop_assert!(kept + planner.ahead_under_way() <= AHEAD_BYTES_MAX, "P2, {index}");
                for answer in planner.take_answers() {
                    ended += 1;
                    if let Some(data) = answer.data {
                        check(&answer.ticket, &data);
                    }
                }
            }
            loop {
                open.extend(std::iter::from_fn(|| planner.start()));
                let Some(one) = open.pop() else { break };
                planner.ended(one.number, Some(bytes_of(one.range)));
            }
            for answer in planner.take_answers() {
                ended += 1;
                check(&answer.ticket, &answer.data.unwrap_or_default());
            }
            prop_assert_eq!(ended, steps.len());
            prop_assert!(planner.is_idle());
        }
    }
}

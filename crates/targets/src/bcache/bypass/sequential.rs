//! Sequential streams: how much a stream of requests has read or written in a row.
//!
//! The ends of the last [`ENDS`] streams are kept. A request that begins where a stream ended, less
//! than [`VALID`] ago, continues it; any other request begins a new one in the place of the one
//! that was continued least recently. A source of requests ([`StreamId`]: the kernel has tasks
//! instead) also has an average of its past streams: a client that reads one long file after the
//! other is recognized at the start of a file.
//!
//! # Rules
//! S1. A stream enters the average of its source once: when a new stream of that source begins
//!     directly after it. A stream that goes on although the source had other requests in between
//!     never does. The kernel adds it before each new stream, which is harmless with tasks; a
//!     connection carries many streams, and one long stream would have all other requests of the
//!     connection bypass the cache.
//! S2. A request counts once, also if it is mapped in parts, or again after it waited: what ends at
//!     the same sector and was started at the same time is one request.
//! S3. Each reactor has streams of its own, which only it changes: its requests take no lock and
//!     share no cache line that is written. A large request that continues no stream of its reactor
//!     is looked up in those of the others, so a client that moves between queues keeps its stream.
//!     What the other reactor changes at that moment can make the answer wrong, never the streams.

use std::array;
use std::time::Duration;

use cairn_block::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use cairn_block::{ReactorId, Sector, SectorRange, StreamId, Time};

/// So many ends are kept, as in the kernel.
const ENDS: usize = 128;
/// For so long.
const VALID: Duration = Duration::from_secs(5);
/// Heads of the lists of entries with equal hashes: so many that nearly all are empty.
const HEADS_LOG: u32 = 11;
/// So many sources are kept; sources of equal remainders displace each other.
const SOURCES: usize = 64;
/// The weight of the past in the average of a source, of this many parts.
const WEIGHT: u64 = 8;
/// A request of at least so many sectors is looked up in the streams of other reactors.
const LARGE: u64 = 128;
/// So many entries of a list of another reactor are looked at.
const PATIENCE: usize = 8;
/// No entry.
const NONE: u8 = u8::MAX;

/// The end of a stream.
struct Entry {
    end: AtomicU64,
    /// When its last request was started.
    at: AtomicU64,
    /// As much as it has read or written.
    bytes: AtomicU32,
    /// S1: its source had other requests in between.
    is_mixed: AtomicBool,
    /// The next entry of the list of this hash, newer ones first.
    next: AtomicU8,
    /// The order in which streams were continued, as a ring.
    newer: AtomicU8,
    older: AtomicU8,
}

/// What is known of a source.
struct Source {
    id: AtomicU32,
    /// The average of its past streams, in bytes.
    average: AtomicU32,
    /// The stream of its last request: its entry, its bytes, and S1.
    bytes: AtomicU32,
    last: AtomicU8,
    is_mixed: AtomicBool,
}

/// The streams of a reactor.
#[repr(align(128))]
struct Streams {
    heads: [AtomicU8; 1 << HEADS_LOG],
    entries: [Entry; ENDS],
    sources: [Source; SOURCES],
    oldest: AtomicU8,
}

/// See the module's description.
pub(super) struct Sequential(Box<[Streams]>);

fn head_of(end: Sector) -> usize {
    (end.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - HEADS_LOG)) as usize
}

impl Sequential {
    /// No streams, for this many reactors.
    pub fn new(reactors: u16) -> Sequential {
        Sequential((0..reactors).map(|_| Streams::new()).collect())
    }

    /// Counts a request. Answers how many bytes count as sequential: those of its stream with it,
    /// or the average of the past streams of its source.
    #[inline]
    pub fn count(
        &self,
        reactor: ReactorId,
        started: Time,
        stream: StreamId,
        range: SectorRange,
    ) -> u64 {
        let own = &self.0[usize::from(reactor.0)];
        let source = own.source(stream);
        let entry = match own.find(range.start, |at| is_valid(at, started), usize::MAX) {
            Some(entry) => {
                own.go_on(source, entry, started, range);
                entry
            }
            None => match own.find(range.end(), |at| at == started, usize::MAX) {
                Some(entry) => entry,
                None => own.begin(source, started, range, self.elsewhere(own, started, range)),
            },
        };
        let bytes = own.entries[usize::from(entry)].bytes.load(Relaxed);
        u64::from(bytes.max(source.average.load(Relaxed)))
    }

    /// The stream of another reactor that a large request continues: its bytes, and S1.
    #[inline]
    fn elsewhere(&self, own: &Streams, started: Time, range: SectorRange) -> Option<(u32, bool)> {
        if range.count.0 < LARGE || self.0.len() == 1 {
            return None;
        }
        let others = self.0.iter().filter(|streams| !std::ptr::eq(*streams, own));
        let mut found = others.filter_map(|streams| {
            let entry = streams.find(range.start, |at| is_valid(at, started), PATIENCE)?;
            let entry = &streams.entries[usize::from(entry)];
            Some((entry.bytes.load(Relaxed), entry.is_mixed.load(Relaxed)))
        });
        found.next()
    }
}

fn is_valid(at: Time, now: Time) -> bool {
    now.since(at) < VALID
}

fn bytes_of(range: SectorRange) -> u32 {
    u32::try_from(range.to_bytes()).unwrap_or(u32::MAX)
}

impl Streams {
    fn new() -> Streams {
        let entry = |index: usize| Entry {
            end: AtomicU64::new(u64::MAX),
            at: AtomicU64::new(0),
            bytes: AtomicU32::new(0),
            is_mixed: AtomicBool::new(false),
            next: AtomicU8::new(NONE),
            newer: AtomicU8::new(((index + 1) % ENDS) as u8),
            older: AtomicU8::new(((index + ENDS - 1) % ENDS) as u8),
        };
        let source = |_| Source {
            id: AtomicU32::new(0),
            average: AtomicU32::new(0),
            bytes: AtomicU32::new(0),
            last: AtomicU8::new(NONE),
            is_mixed: AtomicBool::new(false),
        };
        Streams {
            heads: array::from_fn(|_| AtomicU8::new(NONE)),
            entries: array::from_fn(entry),
            sources: array::from_fn(source),
            oldest: AtomicU8::new(0),
        }
    }

    fn entry(&self, index: u8) -> &Entry {
        &self.entries[usize::from(index) % ENDS]
    }

    fn source(&self, StreamId(id): StreamId) -> &Source {
        let source = &self.sources[id as usize % SOURCES];
        if source.id.load(Relaxed) != id {
            source.id.store(id, Relaxed);
            source.average.store(0, Relaxed);
            source.bytes.store(0, Relaxed);
            source.last.store(NONE, Relaxed);
            source.is_mixed.store(false, Relaxed);
        }
        source
    }

    /// The newest stream that ended at a sector, if its time is right, of as many as `patience`.
    #[inline]
    fn find(&self, end: Sector, right: impl Fn(Time) -> bool, patience: usize) -> Option<u8> {
        let mut index = self.heads[head_of(end)].load(Relaxed);
        for _ in 0..patience {
            if index == NONE {
                return None;
            }
            let entry = self.entry(index);
            if entry.end.load(Relaxed) == end.0 && right(Time(entry.at.load(Relaxed))) {
                return Some(index);
            }
            index = entry.next.load(Relaxed);
        }
        None
    }

    /// A stream is continued.
    #[inline]
    fn go_on(&self, source: &Source, index: u8, started: Time, range: SectorRange) {
        let entry = self.entry(index);
        let bytes = entry.bytes.load(Relaxed).saturating_add(bytes_of(range));
        let is_mixed = entry.is_mixed.load(Relaxed) | (source.last.load(Relaxed) != index);
        self.unlist(index);
        self.make_newest(index);
        self.list(index, started, range.end());
        self.note(source, index, bytes, is_mixed);
    }

    /// A stream begins, or comes over from another reactor.
    #[inline]
    fn begin(
        &self,
        source: &Source,
        started: Time,
        range: SectorRange,
        from: Option<(u32, bool)>,
    ) -> u8 {
        if from.is_none() && !source.is_mixed.load(Relaxed) {
            let past = u64::from(source.average.load(Relaxed)) * (WEIGHT - 1);
            let average = (past + u64::from(source.bytes.load(Relaxed))) / WEIGHT;
            source.average.store(average as u32, Relaxed);
        }
        let (before, is_mixed) = from.unwrap_or_default();
        let index = self.oldest.load(Relaxed);
        self.unlist(index);
        self.oldest.store(self.entry(index).newer.load(Relaxed), Relaxed);
        self.list(index, started, range.end());
        self.note(source, index, before.saturating_add(bytes_of(range)), is_mixed);
        index
    }

    fn note(&self, source: &Source, index: u8, bytes: u32, is_mixed: bool) {
        let entry = self.entry(index);
        entry.bytes.store(bytes, Relaxed);
        entry.is_mixed.store(is_mixed, Relaxed);
        source.bytes.store(bytes, Relaxed);
        source.is_mixed.store(is_mixed, Relaxed);
        source.last.store(index, Relaxed);
    }

    /// Puts an entry with its new end into the list of its hash.
    #[inline]
    fn list(&self, index: u8, started: Time, end: Sector) {
        let (entry, head) = (self.entry(index), &self.heads[head_of(end)]);
        entry.end.store(end.0, Relaxed);
        entry.at.store(started.0, Relaxed);
        entry.next.store(head.load(Relaxed), Relaxed);
        head.store(index, Relaxed);
    }

    /// Takes an entry out of the list of its hash, if it is in one.
    #[inline]
    fn unlist(&self, index: u8) {
        let entry = self.entry(index);
        let mut link = &self.heads[head_of(Sector(entry.end.load(Relaxed)))];
        loop {
            match link.load(Relaxed) {
                NONE => return,
                at if at == index => return link.store(entry.next.load(Relaxed), Relaxed),
                at => link = &self.entry(at).next,
            }
        }
    }

    /// Moves an entry of the ring to the end of the newest.
    #[inline]
    fn make_newest(&self, index: u8) {
        let oldest = self.oldest.load(Relaxed);
        let (newer, older) = {
            let entry = self.entry(index);
            (entry.newer.load(Relaxed), entry.older.load(Relaxed))
        };
        if index == oldest {
            return self.oldest.store(newer, Relaxed);
        }
        if newer == oldest {
            return; // It is the newest.
        }
        self.entry(older).newer.store(newer, Relaxed);
        self.entry(newer).older.store(older, Relaxed);
        let newest = self.entry(oldest).older.load(Relaxed);
        self.entry(newest).newer.store(index, Relaxed);
        self.entry(oldest).older.store(index, Relaxed);
        self.entry(index).older.store(newest, Relaxed);
        self.entry(index).newer.store(oldest, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use cairn_block::SectorCount;
    use proptest::prelude::*;

    const MIB: u64 = 2048;
    const MS: Duration = Duration::from_millis(1);

    fn range(start: u64, count: u64) -> SectorRange {
        SectorRange::new(Sector(start), SectorCount(count))
    }

    /// Requests of one reactor, a millisecond apart.
    struct Client {
        sequential: Sequential,
        now: Time,
    }

    impl Client {
        fn new() -> Client {
            Client { sequential: Sequential::new(2), now: Time(1) }
        }

        /// A request of a source. Answers the sectors that count.
        fn sends(&mut self, source: u32, start: u64, count: u64) -> u64 {
            self.now = self.now + MS;
            self.repeats(source, start, count)
        }

        /// The same, started at the same time as the one before.
        fn repeats(&self, source: u32, start: u64, count: u64) -> u64 {
            let at = range(start, count);
            self.sequential.count(ReactorId(0), self.now, StreamId(source), at) / 512
        }
    }

    #[test]
    fn request_that_begins_where_one_ended_adds_its_sectors() {
        let mut client = Client::new();
        assert_eq!(client.sends(1, 0, 8), 8);
        assert_eq!(client.sends(1, 8, 16), 24);
        assert_eq!(client.sends(1, 25, 8), 8, "a gap");
        assert_eq!(client.sends(1, 24, 8), 32, "the first stream is continued");
        assert_eq!(client.sends(1, 24, 8), 8, "an overwrite is no continuation");
        assert_eq!(client.sends(1, 0, 32), 32);
    }

    #[test]
    fn end_is_valid_for_five_seconds_after_the_last_request() {
        let mut client = Client::new();
        client.sends(1, 0, 8);
        client.now = client.now + (VALID - 2 * MS);
        assert_eq!(client.sends(1, 8, 8), 16);
        client.now = client.now + (VALID - 2 * MS);
        assert_eq!(client.sends(1, 16, 8), 24);
        client.now = client.now + (VALID - MS);
        assert_eq!(client.sends(1, 24, 8), 8);
    }

    #[test]
    fn end_is_kept_while_it_is_among_the_last_128() {
        let mut client = Client::new();
        client.sends(1, 0, 8);
        for other in 1..ENDS as u64 {
            client.sends(1, other * MIB, 8);
        }
        assert_eq!(client.sends(1, 8, 8), 16);
        for other in 1..ENDS as u64 {
            client.sends(1, (other + 1000) * MIB, 8);
        }
        assert_eq!(client.sends(1, 16, 8), 24, "it was continued");
        for other in 0..ENDS as u64 {
            client.sends(1, (other + 2000) * MIB, 8);
        }
        assert_eq!(client.sends(1, 24, 8), 8);
    }

    /// The average of streams of 8 MiB passes 4 MiB with the sixth.
    #[test]
    fn source_of_long_streams_counts_their_average_from_the_start_of_a_stream() {
        let mut client = Client::new();
        let mut first = Vec::new();
        for file in 0..7 {
            let start = file * 100 * MIB;
            first.push(client.sends(5, start, MIB));
            (1..8).for_each(|at| _ = client.sends(5, start + at * MIB, MIB));
        }
        let mut averages = vec![0_u64];
        for _ in 0..6 {
            averages.push((averages[averages.len() - 1] * 7 + (8 << 20)) / 8);
        }
        let expected: Vec<_> = averages.iter().map(|average| (average / 512).max(MIB)).collect();
        assert_eq!(first, expected);
        assert!(first[5] < 4 * MIB && first[6] >= 4 * MIB, "{first:?}");
        assert_eq!(client.sends(6, 5000 * MIB, 8), 8, "another source has an average of its own");
        let forgets = (0..40).map(|at| client.sends(5, (6000 + at) * MIB, 8)).position(|n| n == 8);
        assert!(forgets.is_none(), "an average of MiB takes longer to decay to 4 KiB");
        assert!(client.sends(5, 7000 * MIB, 8) < MIB / 16);
    }

    #[test]
    fn long_stream_beside_random_requests_of_its_source_does_not_make_them_long() {
        let mut client = Client::new();
        let mut most = 0;
        for at in 0..1000 {
            client.sends(1, at * MIB, MIB);
            let random = client.sends(1, (1 << 40) + at * 77_777, 8);
            most = most.max(if at < 10 { 0 } else { random });
        }
        assert!(most < MIB, "{most}");
    }

    #[test]
    fn parts_and_repetitions_of_a_request_count_once() {
        let mut client = Client::new();
        client.sends(1, 0, 8);
        assert_eq!(client.sends(1, 8, 16), 24);
        assert_eq!(client.repeats(1, 10, 14), 24, "the rest of it");
        assert_eq!(client.repeats(1, 8, 16), 24, "all of it, mapped again");
        client.sends(2, 5000, 8);
        client.now = Time(client.now.0 - MS.as_nanos() as u64);
        assert_eq!(client.repeats(1, 23, 1), 24, "after another request");
        assert_eq!(client.sends(1, 24, 8), 32);
        assert_eq!(client.sends(1, 25, 7), 7, "of another time it is another request");
    }

    #[test]
    fn large_request_continues_a_stream_of_another_reactor() {
        let sequential = Sequential::new(2);
        let send = |reactor, start, count| {
            let at = range(start, count);
            sequential.count(ReactorId(reactor), Time(5), StreamId(reactor.into()), at) / 512
        };
        send(1, 1 << 40, 64);
        assert_eq!(send(0, 0, LARGE), LARGE);
        assert_eq!(send(1, LARGE, LARGE - 1), LARGE - 1, "small");
        assert_eq!(send(1, LARGE, LARGE), LARGE * 2);
        assert_eq!(send(0, LARGE * 2, LARGE), LARGE * 3);
        assert_eq!(send(0, LARGE * 3, 1), LARGE * 3 + 1);
        let past = [64, LARGE * 2].iter().fold(0, |past, at| (past * 7 + at * 512) / 8);
        assert_eq!(send(1, 1 << 41, 1), past / 512, "what it continued was no new stream");
    }

    #[test]
    fn bytes_of_a_stream_saturate() {
        let mut client = Client::new();
        for at in 0..5 {
            client.sends(1, at << 22, 1 << 22);
        }
        assert_eq!(client.sends(1, 5 << 22, 1), u64::from(u32::MAX) / 512);
        let average = client.sends(1, 0, 1);
        assert_eq!(average, u64::from(u32::MAX) / 8 / 512);
    }

    #[derive(Clone, Default)]
    struct NaiveSource {
        average: u64,
        bytes: u64,
        is_mixed: bool,
        /// The number of the stream of the last request.
        last: Option<u64>,
    }

    struct NaiveStream {
        number: u64,
        end: u64,
        at: Time,
        bytes: u64,
        is_mixed: bool,
    }

    /// The rules, for one reactor, with a list of streams from the oldest to the newest.
    #[derive(Default)]
    struct Naive {
        streams: Vec<NaiveStream>,
        begun: u64,
        sources: HashMap<u32, NaiveSource>,
    }

    impl Naive {
        fn count(&mut self, now: Time, source: u32, range: SectorRange) -> u64 {
            let source = self.sources.entry(source).or_default();
            let (start, end, bytes) = (range.start.0, range.end().0, range.to_bytes());
            let streams = &mut self.streams;
            let goes_on = |it: &NaiveStream| it.end == start && now.since(it.at) < VALID;
            let is_same = |it: &NaiveStream| it.end == end && it.at == now;
            if let Some(index) = streams.iter().rposition(goes_on) {
                let mut stream = streams.remove(index);
                (stream.end, stream.at, stream.bytes) = (end, now, stream.bytes + bytes);
                stream.is_mixed |= source.last != Some(stream.number);
                streams.push(stream);
            } else if let Some(same) = streams.iter().rfind(|it| is_same(it)) {
                return same.bytes.max(source.average);
            } else {
                if !source.is_mixed {
                    source.average = (source.average * 7 + source.bytes) / 8;
                }
                self.begun += 1;
                let (number, is_mixed) = (self.begun, false);
                streams.push(NaiveStream { number, end, at: now, bytes, is_mixed });
            }
            let stream = streams.last().expect("one was just pushed");
            (source.bytes, source.is_mixed) = (stream.bytes, stream.is_mixed);
            source.last = Some(stream.number);
            let counted = stream.bytes.max(source.average);
            if streams.len() > ENDS {
                streams.remove(0);
            }
            counted
        }
    }

    proptest! {
        #[test]
        fn counts_are_those_of_the_naive_model(
            requests in proptest::collection::vec(
                (0..4_u32, 0..300_u64, 1..5_u64, 0..100_u64),
                1..900,
            ),
        ) {
            let sequential = Sequential::new(1);
            let (mut naive, mut now, mut ends) = (Naive::default(), Time(7), [0; 4]);
            for (source, place, count, kind) in requests {
                now = match kind {
                    0 => now + 600 * MS,
                    1..10 => now,
                    _ => now + MS,
                };
                let end = &mut ends[source as usize];
                let at = range(if kind < 40 { *end } else { place * 4 }, count);
                *end = at.end().0;
                let counted = sequential.count(ReactorId(0), now, StreamId(source), at);
                prop_assert_eq!(counted, naive.count(now, source, at), "{} {}", source, at);
            }
        }
    }
}

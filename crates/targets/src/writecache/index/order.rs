//! The order of insertion: a queue of records, each a run of slots filled one after the other.
//!
//! No record is removed from the middle of the queue. A record becomes stale when its slots are
//! freed or filled again. The slots' seq shows this: a record has the low bits of its own seq.
//! Stale records are skipped. When the records exceed the cached blocks by more than a quarter,
//! every 64th insertion sweeps one page of the queue. Empty pages are dropped, many at once, when
//! every second page is empty. A slot that is dropped and filled again before a commit may pass as
//! its older self: its position in the order is then that of its first filling.
//!
//! Records are stored in pages. Number and time of insertion belong to the page, so that an
//! insertion is known to be older or younger than a mark ([`Order::seal`]), and its age is known to
//! within the grain. Eight bytes per record.

use std::collections::VecDeque;
use std::time::Duration;

use cairn_block::Time;
use cairn_format::writecache::Seq;

use super::list::{List, Words};
use super::pool::{Pool, Slab};

const PAGE_RECORDS: usize = 512;
/// Pages that the queue makes room for at once.
const PAGES: usize = 64;
/// Fewer empty pages than this are not worth a walk through all pages.
const EMPTY_PAGES: usize = 16;
const RECORD_SLOTS: u32 = 256;
const SWEEP_EVERY: u32 = 64;

/// A run of slots inserted together, of one seq.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Record(u64);

const SEQ_MASK: u64 = 0xff_ffff;

impl Record {
    fn new(slot: u32, len: u32, seq: Seq) -> Record {
        debug_assert!((1..=RECORD_SLOTS).contains(&len));
        Record(u64::from(slot) | u64::from(len - 1) << 32 | (seq.0 & SEQ_MASK) << 40)
    }

    pub fn slot(self) -> u32 {
        self.0 as u32
    }

    pub fn len(self) -> u32 {
        u32::from((self.0 >> 32) as u8) + 1
    }

    /// True if a slot with this seq may be one of its own.
    pub fn is_of(self, seq: Seq) -> bool {
        seq.0 & SEQ_MASK == self.0 >> 40
    }
}

struct Page {
    number: u64,
    born: Time,
    records: List<{ PAGE_RECORDS / 16 }>,
}

impl Page {
    fn get(&self, words: &Pool<Words>, at: usize) -> Option<Record> {
        (at < self.records.len()).then(|| Record(self.records.get(words, at)))
    }
}

/// A record with the number and time of its page.
#[derive(Clone, Copy)]
pub(in super::super) struct Inserted {
    pub record: Record,
    pub number: u64,
    pub born: Time,
    at: QueuePosition,
}

/// A position in the queue: number of a page, and a record in it.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct QueuePosition(u64, usize);

/// The queue.
pub(in super::super) struct Order {
    /// By rising numbers, some of which are missing.
    pages: VecDeque<Page>,
    /// How many of them a sweep found without a live record.
    empty_pages: usize,
    words: Pool<Words>,
    /// Records of the first page that were dropped.
    passed: usize,
    records: usize,
    next_number: u64,
    sealed: bool,
    /// How far apart in time the records of a page may be.
    grain: Option<Duration>,
    until_sweep: u32,
    sweep_at: u64,
}

impl Order {
    pub fn new(grain: Option<Duration>) -> Order {
        Order {
            pages: VecDeque::with_capacity(PAGES),
            empty_pages: 0,
            words: Pool::new(),
            passed: 0,
            records: 0,
            next_number: 1,
            sealed: false,
            grain,
            until_sweep: SWEEP_EVERY,
            sweep_at: 0,
        }
    }

    /// True if memory should be added soon; see [`Pool`].
    pub fn is_low(&self) -> bool {
        self.words.is_low() || self.pages.len() + PAGES / 4 > self.pages.capacity()
    }

    /// Adds memory.
    pub(super) fn add(&mut self, words: Slab<Words>) {
        self.words.add(words);
        self.pages.reserve(PAGES / 2);
    }

    /// Ends the page being filled. Returns the number that all insertions so far are below.
    pub fn seal(&mut self) -> u64 {
        self.sealed = true;
        self.next_number
    }

    /// Appends slots.
    pub fn push(&mut self, mut slot: u32, mut len: u32, seq: Seq, now: Time) {
        self.open_page(now);
        // A dropped record must not grow: no search would find the added slots.
        let behind = if self.pages.len() == 1 { self.passed } else { 0 };
        let page = self.pages.back_mut().expect("a page is open");
        let filled = page.records.len();
        if filled > behind
            && let Some(last) = page.get(&self.words, filled - 1)
            && last.is_of(seq)
            && u64::from(last.slot()) + u64::from(last.len()) == u64::from(slot)
        {
            let take = len.min(RECORD_SLOTS - last.len());
            let longer = Record::new(last.slot(), last.len() + take, seq);
            page.records.set(&mut self.words, filled - 1, longer.0);
            (slot, len) = (slot + take, len - take);
        }
        while len > 0 {
            let take = len.min(RECORD_SLOTS);
            let record = Record::new(slot, take, seq);
            self.open_page(now);
            let page = self.pages.back_mut().expect("a page is open");
            page.records.push(&mut self.words, record.0);
            self.records += 1;
            (slot, len) = (slot + take, len - take);
        }
    }

    fn open_page(&mut self, now: Time) {
        let grain = self.grain;
        let fits = |page: &Page| {
            let close = page.born == now || grain.is_none_or(|grain| now.since(page.born) <= grain);
            page.records.len() < PAGE_RECORDS && close
        };
        if self.sealed || !self.pages.back().is_some_and(fits) {
            let number = self.next_number;
            self.pages.push_back(Page { number, born: now, records: List::default() });
            self.next_number += 1;
            self.sealed = false;
        }
    }

    /// The first record at or after a place that is live.
    pub fn next_live(
        &self,
        from: QueuePosition,
        live: impl Fn(Record) -> bool,
    ) -> Option<Inserted> {
        let mut index = self.index_of(from.0);
        let mut at = if self.pages.get(index)?.number == from.0 { from.1 } else { 0 };
        if index == 0 {
            at = at.max(self.passed);
        }
        while let Some(page) = self.pages.get(index) {
            while let Some(record) = page.get(&self.words, at) {
                if live(record) {
                    let place = QueuePosition(page.number, at);
                    return Some(Inserted {
                        record,
                        number: page.number,
                        born: page.born,
                        at: place,
                    });
                }
                at += 1;
            }
            (index, at) = (index + 1, 0);
        }
        None
    }

    /// The index of the first page that has this number or a higher one.
    fn index_of(&self, number: u64) -> usize {
        let first = self.pages.front().map_or(0, |page| page.number);
        if number <= first { 0 } else { self.pages.partition_point(|page| page.number < number) }
    }

    /// The place after a record.
    pub fn after(inserted: &Inserted) -> QueuePosition {
        QueuePosition(inserted.at.0, inserted.at.1 + 1)
    }

    /// The place of a record.
    pub fn place(inserted: &Inserted) -> QueuePosition {
        inserted.at
    }

    /// Drops the stale records at the old end.
    pub fn drop_stale(&mut self, live: impl Fn(Record) -> bool) {
        loop {
            let filling = self.pages.len() == 1 && !self.sealed;
            let Some(page) = self.pages.front_mut() else { return };
            let Some(record) = page.get(&self.words, self.passed) else {
                if filling && page.records.len() > 0 {
                    return;
                }
                self.empty_pages -= usize::from(page.records.len() == 0);
                page.records.truncate(&mut self.words, 0);
                self.pages.pop_front();
                self.passed = 0;
                continue;
            };
            if live(record) {
                return;
            }
            self.passed += 1;
            self.records -= 1;
        }
    }

    /// Called with each insertion. Sometimes drops the stale records of one page, while there are
    /// many more records than `cached` blocks. True if positions may have moved.
    pub fn tend(&mut self, cached: u64, live: impl Fn(Record) -> bool) -> bool {
        self.until_sweep -= 1;
        if self.until_sweep > 0 {
            return false;
        }
        self.until_sweep = SWEEP_EVERY;
        if self.records as u64 <= cached + cached / 4 + 2 * PAGE_RECORDS as u64 {
            return false;
        }
        // The first page is dropped from its old end, the last is being filled.
        let (Some(first), Some(last)) = (self.pages.front(), self.pages.back()) else {
            return false;
        };
        let (first, last) = (first.number, last.number);
        self.sweep_at += 1;
        if self.sweep_at <= first || self.sweep_at >= last {
            self.sweep_at = first + 1;
        }
        if self.sweep_at >= last {
            return false;
        }
        let index = self.index_of(self.sweep_at);
        self.sweep_at = self.pages[index].number;
        if self.sweep_at >= last {
            return false;
        }
        let page = &mut self.pages[index];
        let (before, mut kept) = (page.records.len(), 0);
        for at in 0..before {
            let record = page.records.get(&self.words, at);
            if live(Record(record)) {
                page.records.set(&mut self.words, kept, record);
                kept += 1;
            }
        }
        page.records.truncate(&mut self.words, kept);
        self.records -= before - kept;
        self.empty_pages += usize::from(before > 0 && kept == 0);
        self.drop_empty_pages();
        true
    }

    /// Drops the empty pages if they are many. The first one stays: it may be half passed.
    fn drop_empty_pages(&mut self) {
        if self.empty_pages < EMPTY_PAGES || self.empty_pages * 2 < self.pages.len() {
            return;
        }
        let first = self.pages.front().map_or(0, |page| page.number);
        self.pages.retain(|page| page.number == first || page.records.len() > 0);
        self.empty_pages = self.pages.iter().filter(|page| page.records.len() == 0).count();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, proptest};

    fn slots_of(order: &Order, seqs: &[Option<u64>]) -> Vec<u32> {
        let live = |record: Record| {
            (record.slot()..record.slot() + record.len())
                .any(|slot| seqs[slot as usize].is_some_and(|seq| record.is_of(Seq(seq))))
        };
        let (mut slots, mut at) = (Vec::new(), QueuePosition::default());
        while let Some(inserted) = order.next_live(at, live) {
            at = Order::after(&inserted);
            let record = inserted.record;
            slots.extend(
                (record.slot()..record.slot() + record.len())
                    .filter(|&slot| seqs[slot as usize].is_some_and(|seq| record.is_of(Seq(seq)))),
            );
        }
        slots
    }

    proptest! {
        #[test]
        fn records_come_out_in_insertion_order(
            steps in proptest::collection::vec(
                (0u32..400, 1u32..40, 0u8..5, any::<bool>()),
                1..400,
            ),
        ) {
            let mut order = Order::new(Some(Duration::from_nanos(40)));
            let mut seqs = vec![None; 440];
            let mut naive: Vec<u32> = Vec::new();
            for (now, (slot, len, kind, ends)) in (0u64..).zip(steps) {
                if kind == 0 {
                    let slots = slot..slot + len;
                    naive.retain(|slot| !slots.contains(slot));
                    slots.for_each(|slot| seqs[slot as usize] = None);
                } else {
                    let free = |slot: &u32| seqs[*slot as usize].is_none();
                    let len = (slot..slot + len).take_while(free).count() as u32;
                    if len > 0 {
                        order.push(slot, len, Seq(now), Time(now));
                        naive.extend(slot..slot + len);
                    }
                    (slot..slot + len).for_each(|slot| seqs[slot as usize] = Some(now));
                }
                let live = |record: Record| (record.slot()..record.slot() + record.len())
                    .any(|slot| seqs[slot as usize].is_some_and(|seq| record.is_of(Seq(seq))));
                order.tend(0, live);
                if ends {
                    order.drop_stale(live);
                }
            }
            assert_eq!(slots_of(&order, &seqs), naive);
        }
    }

    #[test]
    fn stale_records_do_not_pile_up() {
        let mut order = Order::new(None);
        for slot in 0..200_000u32 {
            // One in a hundred stays.
            order.push(slot * 2, 1, Seq(0), Time(0));
            order.tend(u64::from(slot) / 100, |record| record.slot() % 200 == 0);
        }
        assert!(order.records < 20_000, "{} records", order.records);
    }

    #[test]
    fn empty_pages_do_not_pile_up_behind_a_record_that_stays() {
        let mut order = Order::new(None);
        let mut most = 0;
        for slot in 0..400_000u32 {
            order.push(slot * 2, 1, Seq(0), Time(0));
            order.tend(2, |record| record.slot() == 0 || record.slot() == slot * 2);
            most = most.max(order.pages.len());
        }
        assert!(most < 64, "{most} pages for two records");
        let live = |record: Record| record.slot() == 0 || record.slot() == 799_998;
        let first = order.next_live(QueuePosition::default(), live).expect("it stays");
        let second = order.next_live(Order::after(&first), live).expect("the last one");
        assert_eq!((first.record.slot(), second.record.slot()), (0, 799_998));
        // Places in pages that are gone lead to what comes after.
        let between =
            order.next_live(QueuePosition(first.number + 1, 300), live).expect("the last one");
        assert_eq!(between.record.slot(), 799_998);
        order.drop_stale(|record| record.slot() == 799_998);
        assert_eq!(
            order.next_live(QueuePosition::default(), live).expect("left").record.slot(),
            799_998
        );
    }

    #[test]
    fn a_dropped_record_does_not_grow() {
        let mut order = Order::new(None);
        order.push(0, 1, Seq(0), Time(0));
        order.drop_stale(|_| false);
        order.push(1, 1, Seq(0), Time(0));
        let live = order.next_live(QueuePosition::default(), |_| true).expect("it has its place");
        assert_eq!((live.record.slot(), live.record.len()), (1, 1));
    }

    #[test]
    fn a_seal_divides_older_from_younger() {
        let mut order = Order::new(None);
        order.push(0, 3, Seq(1), Time(1));
        let mark = order.seal();
        order.push(3, 1, Seq(1), Time(1));
        let first = order.next_live(QueuePosition::default(), |_| true).unwrap();
        let second = order.next_live(Order::after(&first), |_| true).unwrap();
        assert!(first.number < mark && second.number >= mark);
        assert_eq!((first.record.len(), second.record.slot()), (3, 3));
    }
}

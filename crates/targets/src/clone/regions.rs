//! Which regions are hydrated, and the jobs that hydrate some: the state of a clone in memory.
//!
//! R1. Bits change under the lock of [`State`]; requests read them without it. A request that finds
//!     a region not hydrated looks again under the lock.
//! R2. Jobs do not overlap, and none covers a hydrated region (I2).
//! R3. `uncommitted` counts regions whose bit is set and not durable. It is lowered when a commit
//!     is durable, and after what I6 asks for.
//! R4. Arrays with such a region are in `changed`, or a commit of them runs.
//! R5. `known` is the failure count of the destination from before the oldest write of a region
//!     whose bit is not durable, or an earlier one.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use cairn_block::sync::atomic::{AtomicU64, Ordering};
use cairn_block::{RequestId, Time};
use cairn_format::clone::WORDS_MAX;

use super::config::Settings;
use crate::group_commit::GroupCommit;
use crate::live_log::LiveLog;
use crate::losses::Losses;

const WORD_BITS: u64 = 64;

/// One bit for each region.
pub(super) struct Bits {
    words: Box<[AtomicU64]>,
    regions: u64,
}

impl Bits {
    /// No region is hydrated.
    pub fn new(regions: u64) -> Bits {
        let words = (0..regions.div_ceil(WORD_BITS)).map(|_| AtomicU64::new(0)).collect();
        Bits { words, regions }
    }

    pub fn regions(&self) -> u64 {
        self.regions
    }

    /// Takes the bits of these words, for regions that exist.
    pub fn load(&self, words: &[u64]) {
        self.words.iter().zip(words).for_each(|(own, word)| own.store(*word, Ordering::Release));
    }

    pub fn words(&self) -> usize {
        self.words.len()
    }

    pub fn word(&self, at: usize) -> u64 {
        self.words[at].load(Ordering::Acquire)
    }

    pub fn is_set(&self, region: u64) -> bool {
        self.word((region / WORD_BITS) as usize) >> (region % WORD_BITS) & 1 == 1
    }

    /// The regions from the first of a range on that are alike, and whether they are hydrated.
    pub fn run(&self, range: &Range<u64>) -> (bool, u64) {
        let is_set = self.is_set(range.start);
        let mut end = range.start + 1;
        while end < range.end {
            let word = self.word((end / WORD_BITS) as usize);
            let unlike = if is_set { !word } else { word } >> (end % WORD_BITS);
            let alike = u64::from(unlike.trailing_zeros()).min(WORD_BITS - end % WORD_BITS);
            end += alike;
            if alike < WORD_BITS - (end - alike) % WORD_BITS {
                break;
            }
        }
        (is_set, end.min(range.end) - range.start)
    }

    /// The first region from `from` on that is not hydrated.
    pub fn next_clear(&self, from: u64) -> Option<u64> {
        if from >= self.regions {
            return None;
        }
        match self.run(&(from..self.regions)) {
            (false, _) => Some(from),
            (true, count) => Some(from + count).filter(|region| *region < self.regions),
        }
    }

    /// Sets or clears a range: a word at a time, since a discard may have millions.
    fn put(&self, regions: &Range<u64>, is_set: bool) {
        let mut at = regions.start;
        while at < regions.end {
            let (word, first) = ((at / WORD_BITS) as usize, at % WORD_BITS);
            let count = (WORD_BITS - first).min(regions.end - at);
            let mask = (u64::MAX >> (WORD_BITS - count)) << first;
            let old = self.word(word);
            let new = if is_set { old | mask } else { old & !mask };
            self.words[word].store(new, Ordering::Release);
            at += count;
        }
    }
}

/// The numbers of the array blocks that have these regions.
fn arrays_of(regions: &Range<u64>) -> Range<usize> {
    let array = |region: u64| (region / WORD_BITS) as usize / WORDS_MAX;
    array(regions.start)..array(regions.end - 1) + 1
}

/// What hydrates regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// A write, write-zeroes or discard that covers them.
    Cover,
    /// A copy for a write that waits.
    Wanted,
    /// A copy in the background.
    Hydration,
    /// None: they were hydrated, and are not any more (I6).
    Repair,
}

/// Regions that are not hydrated and that one caller writes.
pub(super) struct Job {
    pub end: u64,
    pub cause: Cause,
    /// The failure count of the destination before its first write.
    pub failures: u64,
    /// Requests that are mapped again at its end.
    pub waiters: Vec<RequestId>,
}

/// What requests and tasks share, under one short lock.
pub(super) struct State {
    /// By their first region (R2).
    pub jobs: BTreeMap<u64, Job>,
    pub hydrated: u64,
    /// R3.
    pub uncommitted: u64,
    /// R4.
    pub changed: BTreeSet<usize>,
    /// R5.
    pub known: u64,
    pub commits: GroupCommit,
    pub acknowledged: LiveLog,
    pub losses: Losses,
    pub settings: Settings,
    /// Requests that wait for room in the crash log.
    pub room_waiters: Vec<RequestId>,
    /// A copy failed: hydration rests until then.
    pub rests_until: Option<Time>,
    /// The last commit failed.
    pub is_failing: bool,
    /// Metadata blocks in use, and all.
    pub blocks: (u64, u64),
    /// A suspend has begun: hydration rests.
    pub suspending: bool,
    /// A suspend has begun that does not wait for a commit: no request waits for room any more.
    pub handing_back: bool,
    /// Tasks end.
    pub stopping: bool,
}

impl State {
    pub fn new(settings: Settings) -> State {
        State {
            jobs: BTreeMap::new(),
            hydrated: 0,
            uncommitted: 0,
            changed: BTreeSet::new(),
            known: 0,
            commits: GroupCommit::default(),
            acknowledged: LiveLog::default(),
            losses: Losses::default(),
            settings,
            room_waiters: Vec::new(),
            rests_until: None,
            is_failing: false,
            blocks: (0, 0),
            suspending: true,
            handing_back: false,
            stopping: false,
        }
    }

    /// The job that covers a region.
    pub fn job_of(&mut self, region: u64) -> Option<&mut Job> {
        let (_, job) = self.jobs.range_mut(..=region).next_back()?;
        (region < job.end).then_some(job)
    }

    /// How many regions from the first of a range on are in no job.
    pub fn free(&mut self, range: &Range<u64>) -> u64 {
        if self.job_of(range.start).is_some() {
            return 0;
        }
        let next = self.jobs.range(range.clone()).next().map_or(range.end, |(start, _)| *start);
        next - range.start
    }

    /// Regions in jobs of hydration.
    pub fn hydrating(&self) -> u64 {
        let jobs = self.jobs.iter().filter(|(_, job)| job.cause == Cause::Hydration);
        jobs.map(|(start, job)| job.end - start).sum()
    }

    /// Regions that are being copied.
    pub fn copying(&self) -> u64 {
        let is_copy = |job: &Job| matches!(job.cause, Cause::Hydration | Cause::Wanted);
        let jobs = self.jobs.iter().filter(|(_, job)| is_copy(job));
        jobs.map(|(start, job)| job.end - start).sum()
    }

    /// True if the device has the bits that are set, and no others.
    pub fn is_durable(&self) -> bool {
        self.uncommitted == 0 && !self.is_failing
    }

    /// Regions are hydrated now (I1); their write began at this failure count.
    pub fn hydrate(&mut self, bits: &Bits, regions: Range<u64>, failures: u64) {
        if self.uncommitted == 0 {
            self.known = failures;
        }
        self.known = self.known.min(failures);
        self.changed.extend(arrays_of(&regions));
        let count = regions.end - regions.start;
        (self.hydrated, self.uncommitted) = (self.hydrated + count, self.uncommitted + count);
        bits.put(&regions, true);
    }

    /// Regions are not hydrated any more; `uncommitted` still counts them (I6).
    pub fn withdraw(&mut self, bits: &Bits, regions: &Range<u64>, failures: u64) {
        self.changed.extend(arrays_of(regions));
        self.hydrated -= regions.end - regions.start;
        bits.put(regions, false);
        let (end, cause, waiters) = (regions.end, Cause::Repair, Vec::new());
        self.jobs.insert(regions.start, Job { end, cause, failures, waiters });
    }

    /// Checks what must hold whenever the lock is free.
    pub fn check_state(&self, bits: &Bits) {
        let ends = self.jobs.values().map(|job| job.end);
        let starts = self.jobs.keys().skip(1);
        assert!(starts.zip(ends).all(|(start, end)| end <= *start), "R2: jobs do not overlap");
        for (start, job) in &self.jobs {
            let run = bits.run(&(*start..job.end));
            assert_eq!(run, (false, job.end - start), "R2: what a job covers is not hydrated");
        }
        self.commits.check_state();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_range_is_set_and_cleared_and_nothing_beside_it(
            words in prop::collection::vec(any::<u64>(), 4),
            start in 0u64..250,
            count in 1u64..250,
            is_set: bool,
        ) {
            let (bits, before) = (Bits::new(250), Bits::new(250));
            [&bits, &before].iter().for_each(|all| all.load(&words));
            let range = start..(start + count).min(250);
            bits.put(&range, is_set);
            for region in 0..250 {
                let expected = if range.contains(&region) { is_set } else { before.is_set(region) };
                prop_assert_eq!(bits.is_set(region), expected);
            }
        }

        #[test]
        fn a_run_ends_where_the_next_region_differs(
            words in prop::collection::vec(prop_oneof![Just(0), Just(u64::MAX), any::<u64>()], 4),
            start in 0u64..250,
            count in 1u64..250,
        ) {
            let bits = Bits::new(250);
            bits.load(&words);
            let range = start..(start + count).min(250);
            let expected = range.clone().take_while(|r| bits.is_set(*r) == bits.is_set(start));
            prop_assert_eq!(bits.run(&range), (bits.is_set(start), expected.count() as u64));
            let clear = (start..250).find(|region| !bits.is_set(*region));
            prop_assert_eq!(bits.next_clear(start), clear);
        }
    }
}

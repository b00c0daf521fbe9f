//! The words of a crash log.
//!
//! ```text
//! word 0  magic         8  generation  \              16  generation  \
//!      1  owner         9  state        \ half 0      17  state        \ half 1
//!      2  included     10  is whole     /             18  is whole     /
//!      3  is lost      11  check       /              19  check       /
//!      4  untold
//!      5  survived
//!      6  next
//!      7  begun by
//!     32  records of half 0, then those of half 1, 4 words each
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::ConfigError;
use crate::sync::Mutex;

use super::Base;
use super::record::{Record, WORDS, check};

const MAGIC: u64 = u64::from_le_bytes(*b"cairnlg1");
/// Words before the first record.
const HEADER_WORDS: usize = 32;
/// Of a half's words in the header, the first.
const HALVES: [usize; 2] = [8, 16];
/// No state of a device.
pub(super) const NO_STATE: u64 = u64::MAX;
/// No process.
pub(super) const NO_PROCESS: u64 = u64::MAX;

/// Memory that outlives the process, and no power cut.
pub trait CrashMemory: Send + Sync {
    /// Its words: zeros at first. At least a header and a record for each half.
    fn words(&self) -> &[AtomicU64];

    /// Names the process among all that have had it. Never zero.
    fn process(&self) -> u64;

    /// The process has not begun to serve: if its start fails, the next process finds what it
    /// found.
    fn is_of_a_start(&self) -> bool {
        false
    }
}

/// What memory is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Content {
    /// A crash log.
    Records,
    /// The failure count of a disk: a page.
    Failures,
}

/// Where memory for crash logs is found, by name.
pub trait CrashLogs: Send + Sync {
    /// The memory of a name: what an earlier process left in it, or zeros. None if there is no
    /// place for it, which has been said.
    ///
    /// # Errors
    /// Another process has it.
    fn open(
        &self,
        name: &str,
        content: Content,
    ) -> Result<Option<Arc<dyn CrashMemory>>, ConfigError>;

    /// The memory of a name that an earlier process left, to look at: what is stored there stays in
    /// this process.
    ///
    /// # Errors
    /// There may be some that this process cannot read.
    fn find(
        &self,
        name: &str,
        content: Content,
    ) -> Result<Option<Arc<dyn CrashMemory>>, ConfigError>;
}

/// Memory of this process.
pub struct KeptMemory {
    words: Box<[AtomicU64]>,
    process: u64,
}

impl KeptMemory {
    /// Memory for so many records in each half.
    pub fn new(records: usize) -> KeptMemory {
        let words = HEADER_WORDS + 2 * records * WORDS;
        KeptMemory { words: (0..words).map(|_| AtomicU64::new(0)).collect(), process: 1 }
    }

    /// What a kill now leaves, for the process after this one.
    pub fn after_kill(&self) -> KeptMemory {
        KeptMemory { process: self.process + 1, ..self.copy() }
    }

    /// What is stored there stays there.
    fn copy(&self) -> KeptMemory {
        let words = self.words.iter().map(|word| AtomicU64::new(get(word))).collect();
        KeptMemory { words, process: self.process }
    }
}

impl CrashMemory for KeptMemory {
    fn words(&self) -> &[AtomicU64] {
        &self.words
    }

    fn process(&self) -> u64 {
        self.process
    }
}

/// Logs of one simulated machine: they outlive its processes.
pub struct KeptLogs {
    records: usize,
    logs: Mutex<BTreeMap<String, Arc<KeptMemory>>>,
}

impl KeptLogs {
    /// Logs with room for so many records in each half.
    pub fn new(records: usize) -> KeptLogs {
        KeptLogs { records, logs: Mutex::default() }
    }

    /// What a kill now leaves, for the process after this one.
    pub fn after_kill(&self) -> KeptLogs {
        let logs = self.logs.lock();
        let kept = |(name, memory): (&String, &Arc<KeptMemory>)| {
            (name.clone(), Arc::new(memory.after_kill()))
        };
        KeptLogs { records: self.records, logs: Mutex::new(logs.iter().map(kept).collect()) }
    }
}

impl CrashLogs for KeptLogs {
    fn open(&self, name: &str, _: Content) -> Result<Option<Arc<dyn CrashMemory>>, ConfigError> {
        let mut logs = self.logs.lock();
        let log = logs.entry(name.to_owned());
        let log = log.or_insert_with(|| Arc::new(KeptMemory::new(self.records)));
        Ok(Some(log.clone()))
    }

    fn find(&self, name: &str, _: Content) -> Result<Option<Arc<dyn CrashMemory>>, ConfigError> {
        let found = self.logs.lock().get(name).map(|memory| memory.copy());
        Ok(found.map(|copy| Arc::new(copy) as _))
    }
}

/// All of it.
#[derive(Clone, Copy)]
pub(super) struct Header<'m>(&'m [AtomicU64]);

fn get(word: &AtomicU64) -> u64 {
    word.load(Ordering::Acquire)
}

/// What was stored before stays before it, also for a process that reads after a kill.
fn set(word: &AtomicU64, value: u64) {
    store(word, value, Ordering::Release);
}

fn store(word: &AtomicU64, value: u64, order: Ordering) {
    #[cfg(test)]
    if super::tests::is_killed() {
        return;
    }
    word.store(value, order);
}

impl<'m> Header<'m> {
    pub fn of(memory: &'m dyn CrashMemory) -> Header<'m> {
        Header(memory.words())
    }

    pub fn is_valid(&self) -> bool {
        get(&self.0[0]) == MAGIC
    }

    /// Makes memory without meaning a log that has nothing.
    pub fn format(&self, base: &Base, process: u64) {
        self.halves().iter().for_each(Half::empty);
        self.set_untold(0);
        self.begin(base, process);
        set(&self.0[0], MAGIC);
    }

    pub fn owner(&self) -> u64 {
        get(&self.0[1])
    }

    pub fn included(&self) -> Option<u64> {
        Some(get(&self.0[2])).filter(|&state| state != NO_STATE)
    }

    pub fn include(&self, state: u64) {
        set(&self.0[2], state);
    }

    pub fn is_lost(&self) -> bool {
        get(&self.0[3]) != 0
    }

    /// Nothing is to be replayed. This process tells its clients.
    pub fn lose(&self, process: u64) {
        self.set_untold(process);
        set(&self.0[3], 1);
    }

    /// There is nothing that could be lost.
    pub fn find_again(&self) {
        set(&self.0[3], 0);
    }

    /// The state that the device may have as well as that of the halves.
    pub fn next(&self) -> Option<u64> {
        Some(get(&self.0[6])).filter(|&state| state != NO_STATE)
    }

    pub fn advance(&self, state: u64) {
        set(&self.0[6], state);
    }

    /// The process whose records count.
    pub fn begun_by(&self) -> u64 {
        get(&self.0[7])
    }

    /// The failures that have lost no record.
    pub fn survived(&self) -> u64 {
        get(&self.0[5])
    }

    pub fn set_survived(&self, failures: u64) {
        set(&self.0[5], failures);
    }

    /// The process that has counted a loss that no client was told of, or zero.
    pub fn untold(&self) -> u64 {
        get(&self.0[4])
    }

    pub fn set_untold(&self, process: u64) {
        set(&self.0[4], process);
    }

    /// From now on records count.
    pub fn begin(&self, base: &Base, process: u64) {
        self.advance(NO_STATE);
        set(&self.0[1], base.owner);
        self.set_survived(base.failures);
        set(&self.0[7], process);
        set(&self.0[3], 0);
        set(&self.0[2], NO_STATE);
    }

    pub fn half(&self, index: usize) -> Half<'m> {
        let records = (self.0.len() - HEADER_WORDS) / (2 * WORDS);
        let from = HEADER_WORDS + index * records * WORDS;
        Half { header: &self.0[HALVES[index]..], records: &self.0[from..from + records * WORDS] }
    }

    pub fn halves(&self) -> [Half<'m>; 2] {
        [self.half(0), self.half(1)]
    }
}

/// One half.
#[derive(Clone, Copy)]
pub(super) struct Half<'m> {
    header: &'m [AtomicU64],
    records: &'m [AtomicU64],
}

impl Half<'_> {
    pub fn generation(&self) -> u64 {
        get(&self.header[0])
    }

    /// What it extends.
    pub fn state(&self) -> u64 {
        get(&self.header[1])
    }

    /// Its records replace those of an older half.
    pub fn is_whole(&self) -> bool {
        get(&self.header[2]) != 0
    }

    pub fn is_open(&self) -> bool {
        let words = [u64::from(self.is_whole())];
        get(&self.header[3]) == check(self.generation(), usize::MAX, &words)
    }

    /// Says what it extends. One store, which its check does not depend on: a reader finds this
    /// state or the one of before.
    pub fn extend(&self, state: u64) {
        set(&self.header[1], state);
    }

    /// Says which generation of records is put there, before it is opened (L2).
    pub fn name(&self, generation: u64) {
        set(&self.header[0], generation);
    }

    /// Opens it. What was put there with this generation counts from now on.
    pub fn open(&self, generation: u64, state: u64, is_whole: bool) {
        let words = [u64::from(is_whole)];
        set(&self.header[0], generation);
        self.extend(state);
        set(&self.header[2], words[0]);
        set(&self.header[3], check(generation, usize::MAX, &words));
    }

    pub fn empty(&self) {
        set(&self.header[3], 0);
    }

    pub fn capacity(&self) -> usize {
        self.records.len() / WORDS
    }

    /// Stores a record behind those that it has.
    pub fn put(&self, generation: u64, index: usize, record: Record) {
        let words = &self.records[index * WORDS..][..WORDS];
        for (word, value) in words.iter().zip(record) {
            store(word, value, Ordering::Relaxed);
        }
        set(&words[WORDS - 1], check(generation, index, &record));
    }

    /// Its records, in order.
    pub fn records(&self) -> Vec<Record> {
        let generation = self.generation();
        let mut records = Vec::new();
        for (index, words) in self.records.chunks_exact(WORDS).enumerate() {
            let record = [get(&words[0]), get(&words[1]), get(&words[2])];
            if get(&words[WORDS - 1]) != check(generation, index, &record) {
                break;
            }
            records.push(record);
        }
        records
    }
}

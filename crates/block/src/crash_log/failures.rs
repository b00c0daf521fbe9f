//! The failure count of a disk in memory that outlives the process: a loss that no client was told
//! of is told by the next process.
//!
//! ```text
//! word 0  magic
//!      1  count   \ see `FailureCount`
//!      2  told    /
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

use super::memory::CrashMemory;

const MAGIC: u64 = u64::from_le_bytes(*b"cairnfl1");

/// From now on the memory is that of a count.
pub(crate) fn begin_count(memory: &dyn CrashMemory) {
    memory.words()[0].store(MAGIC, Ordering::Release);
}

/// The word of the count.
pub(crate) fn count_in(memory: &dyn CrashMemory) -> &AtomicU64 {
    &memory.words()[1]
}

/// The word of what was told.
pub(crate) fn told_in(memory: &dyn CrashMemory) -> &AtomicU64 {
    &memory.words()[2]
}

/// True if this is a count, or nothing yet, and nothing has failed. Above zero it stays, told or
/// not: logs refer to it, and a start that is refused may have it last.
pub(super) fn says_nothing(memory: &dyn CrashMemory) -> bool {
    let [magic, count, told] = [0, 1, 2].map(|word| memory.words()[word].load(Ordering::Acquire));
    [count, told] == [0; 2] && [MAGIC, 0].contains(&magic)
}

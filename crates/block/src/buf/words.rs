//! [`HugeWords`]: a large array of words for random lookups, advised for huge pages.

use std::alloc::{Layout, handle_alloc_error};
use std::ops::Deref;
use std::sync::atomic::AtomicU64;

use super::span::Span;

/// Words in one piece of memory of whole huge pages; all zero when new.
pub struct HugeWords(Span);

// SAFETY: the memory belongs to this value, whoever holds it, and is seen as atomics alone.
unsafe impl Send for HugeWords {}
// SAFETY: as above.
unsafe impl Sync for HugeWords {}

impl HugeWords {
    /// At least so many.
    ///
    /// Like any allocation it ends the process if the system has no memory.
    #[must_use]
    pub fn zeroed(words: usize) -> HugeWords {
        let layout = Layout::array::<AtomicU64>(words).expect("as large as memory can be");
        HugeWords(Span::new(layout.size()).unwrap_or_else(|| handle_alloc_error(layout)))
    }

    /// Has the processor fetch a word that will be looked up soon; waits for nothing.
    #[inline(always)]
    pub fn fetch(&self, index: usize) {
        let word = &raw const self[index];
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint about an address, which points into `self`; it reads nothing.
        unsafe {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(word.cast());
        }
        // Elsewhere Rust has no stable way to say it.
        #[cfg(not(target_arch = "x86_64"))]
        let _ = word;
    }
}

impl Deref for HugeWords {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        let words = self.0.bytes() / size_of::<AtomicU64>();
        // SAFETY: the span is aligned to a huge page, was zeroed, is written through these atomics
        // alone, and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.0.at(0).cast().as_ptr(), words) }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn words_are_zero_when_new_and_keep_what_is_stored() {
        let words = HugeWords::zeroed(300_000);
        assert!(words.len() >= 300_000);
        assert!(words.iter().all(|word| word.load(Ordering::Relaxed) == 0));
        words.fetch(299_999);
        words[299_999].store(7, Ordering::Relaxed);
        assert_eq!(words[299_999].load(Ordering::Relaxed), 7);
    }
}

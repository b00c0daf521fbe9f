//! Which chunks have a completed exception, told without a lock: a bit per chunk.
//!
//! A reader of the snapshot looks here first; where no bit is set it goes to the origin and has
//! written to no memory that other reactors share. A bit is set before the exception's copier
//! looks for readers, so that the rule of `readers` holds for the bit as for the table.
//!
//! Pages of bits are made when their first bit is set: chunks that nobody wrote cost nothing.

use std::sync::OnceLock;

use cairn_block::sync::atomic::{AtomicU64, Ordering};

/// Chunks in a word, which is a group of the table.
pub(super) const WORD_CHUNKS: u64 = 64;
/// Words in a page: 4 KiB.
const PAGE_WORDS: usize = 512;

type Page = Box<[AtomicU64]>;

/// The bits of one snapshot.
pub(super) struct Presence {
    pages: Box<[OnceLock<Page>]>,
}

fn fresh_page() -> Page {
    (0..PAGE_WORDS).map(|_| AtomicU64::new(0)).collect()
}

impl Presence {
    /// No bit is set of so many chunks.
    pub fn new(chunks: u64) -> Presence {
        let pages = chunks.div_ceil(WORD_CHUNKS * PAGE_WORDS as u64);
        Presence { pages: (0..pages).map(|_| OnceLock::new()).collect() }
    }

    /// The place of a chunk: page, word in it, bit in that.
    fn place(chunk: u64) -> (usize, usize, u64) {
        let word = chunk / WORD_CHUNKS;
        let page = usize::try_from(word / PAGE_WORDS as u64).unwrap_or(usize::MAX);
        (page, (word % PAGE_WORDS as u64) as usize, chunk % WORD_CHUNKS)
    }

    /// How many chunks from `chunk` to the end of its word surely have no exception.
    pub fn missing(&self, chunk: u64) -> u64 {
        let (page, word, bit) = Presence::place(chunk);
        // Beyond the origin as it was when the snapshot began nothing is known.
        let Some(page) = self.pages.get(page) else { return 0 };
        let word = page.get().map_or(0, |page| page[word].load(Ordering::Acquire));
        u64::from((word >> bit).trailing_zeros()).min(WORD_CHUNKS - bit)
    }

    /// The chunk has an exception. The caller holds the lock of its group.
    pub fn set(&self, chunk: u64) {
        let (page, word, bit) = Presence::place(chunk);
        if let Some(page) = self.pages.get(page) {
            page.get_or_init(fresh_page)[word].fetch_or(1 << bit, Ordering::Release);
        }
    }

    /// The chunk has none any more. The caller holds the lock of its group.
    pub fn clear(&self, chunk: u64) {
        let (page, word, bit) = Presence::place(chunk);
        if let Some(page) = self.pages.get(page).and_then(OnceLock::get) {
            page[word].fetch_and(!(1 << bit), Ordering::Release);
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::Presence;

    #[test]
    fn missing_chunks_are_counted_to_the_next_exception_or_the_end_of_the_word() {
        let presence = Presence::new(100_000);
        assert_eq!((presence.missing(0), presence.missing(63)), (64, 1));
        presence.set(10);
        presence.set(99_999);
        assert_eq!((presence.missing(0), presence.missing(10), presence.missing(11)), (10, 0, 53));
        assert_eq!(presence.missing(99_999), 0);
        presence.clear(10);
        assert_eq!(presence.missing(0), 64);
    }

    #[test]
    fn nothing_is_known_beyond_the_end() {
        let presence = Presence::new(1);
        presence.set(1 << 40);
        assert_eq!(presence.missing(1 << 40), 0);
        assert_eq!(Presence::new(0).missing(0), 0);
    }
}

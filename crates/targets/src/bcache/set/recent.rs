//! Where keys lie that entered the tree lately: an answer in constant time to whether the keys of
//! some sectors are all in durable entries of the journal. It takes no memory beyond its marks.
//!
//! Keys have numbers (N1). Each zone of a volume has a mark, which it shares with other zones: the
//! number of the last key with sectors there. So a key of a zone is durable if the mark is at most
//! the number of the last durable key. Marks are never taken back. Zones that share a mark make the
//! answer "no" more often than needed, which costs a new place for the write that asks.

use crate::bcache::btree::Span;

/// Sectors of a zone.
const ZONE: u64 = 64;
/// How many marks there are: a power of two.
const MARKS: usize = 4096;
/// A span of more zones has no marks of its own.
const ZONES_MAX: u64 = 128;

/// See the module's description.
pub(super) struct Recent {
    marks: Box<[u64]>,
    /// Of the spans without marks.
    long: u64,
}

impl Default for Recent {
    fn default() -> Recent {
        Recent { marks: vec![0; MARKS].into_boxed_slice(), long: 0 }
    }
}

/// The marks of these sectors; none if there are too many.
fn marks_of(span: &Span) -> Option<impl Iterator<Item = usize> + use<>> {
    let zones = span.start / ZONE..span.end.div_ceil(ZONE);
    // Volumes begin far from each other.
    let first = u64::from(span.inode) * (MARKS as u64 * 5 / 8 + 1);
    let is_short = zones.end - zones.start <= ZONES_MAX;
    is_short.then(|| zones.map(move |zone| (first + zone) as usize % MARKS))
}

impl Recent {
    /// A key with these sectors has this number, which is above all before it.
    pub fn add(&mut self, span: &Span, number: u64) {
        match marks_of(span) {
            Some(marks) => marks.for_each(|mark| self.marks[mark] = number),
            None => self.long = number,
        }
    }

    /// True if no key behind the number `durable` has one of these sectors.
    pub fn are_durable(&self, span: &Span, durable: u64) -> bool {
        let Some(mut marks) = marks_of(span) else { return false };
        self.long <= durable && marks.all(|mark| self.marks[mark] <= durable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn span(inode: u32, start: u64, count: u64) -> Span {
        Span { inode, start, end: start + count }
    }

    #[test]
    fn a_long_span_counts_everywhere() {
        let mut recent = Recent::default();
        recent.add(&span(0, 0, 1 << 20), 1);
        assert!(!recent.are_durable(&span(1, 8, 8), 0) && recent.are_durable(&span(1, 8, 8), 1));
        assert!(!recent.are_durable(&span(0, 0, 1 << 20), 1), "it would take too long to say");
    }

    proptest! {
        #[test]
        fn no_sector_of_a_key_that_is_not_durable_passes_for_durable(
            keys in proptest::collection::vec((0..3_u32, 0..400_000_u64, 1..9000_u64), 1..200),
            durable in 0..200_u64,
            asked in proptest::collection::vec((0..3_u32, 0..400_000_u64, 1..300_u64), 50),
        ) {
            let mut recent = Recent::default();
            for ((inode, start, count), number) in keys.iter().zip(1..) {
                recent.add(&span(*inode, *start, *count), number);
            }
            let volatile = || keys.iter().zip(1..).filter(|(_, number)| *number > durable);
            for (inode, start, count) in asked {
                let asked = span(inode, start, count);
                let shares = |key: &(u32, u64, u64)| span(key.0, key.1, key.2).overlaps(&asked);
                let overlaps = volatile().any(|(key, _)| shares(key));
                prop_assert!(!overlaps || !recent.are_durable(&asked, durable));
            }
            if volatile().next().is_none() {
                prop_assert!(recent.are_durable(&span(0, 0, 8), durable), "all are durable");
            }
        }
    }
}

//! Ghosts: sectors for which the device may have a clean key that the tree in memory has not (N5).
//!
//! Each change takes a time that depends on the sectors that change, not on how many ghosts there
//! are.

use std::collections::BTreeMap;

use cairn_format::bcache::Key;

use crate::bcache::btree::Span;

/// Sectors, as spans that neither overlap nor touch: where each begins, and its end.
#[derive(Default)]
struct Sectors {
    spans: BTreeMap<(u32, u64), u64>,
}

impl Sectors {
    /// The spans that have sectors in a span, or touch it, from the last to the first.
    fn around(&self, span: &Span) -> impl Iterator<Item = Span> {
        let (inode, start) = (span.inode, span.start);
        let before = self.spans.range((inode, 0)..=(inode, span.end)).rev();
        let spans = before.map(move |((_, start), end)| Span { inode, start: *start, end: *end });
        spans.take_while(move |own| own.end >= start)
    }

    fn overlaps(&self, span: &Span) -> bool {
        self.around(span).any(|own| own.overlaps(span))
    }

    fn add(&mut self, mut span: Span) {
        while let Some(own) = { self.around(&span).next() } {
            self.spans.remove(&(own.inode, own.start));
            span = Span { start: span.start.min(own.start), end: span.end.max(own.end), ..span };
        }
        self.spans.insert((span.inode, span.start), span.end);
    }

    fn remove(&mut self, span: &Span) {
        while let Some(own) = { self.around(span).find(|own| own.overlaps(span)) } {
            self.spans.remove(&(own.inode, own.start));
            if own.start < span.start {
                self.spans.insert((own.inode, own.start), span.start);
            }
            if span.end < own.end {
                self.spans.insert((own.inode, span.end), own.end);
            }
        }
    }
}

/// See the module's description.
#[derive(Default)]
pub(in super::super) struct Ghosts {
    /// Of evicted extents: since the last checkpoint began, and before it. More than one checkpoint
    /// may begin before one ends.
    evicted: Sectors,
    settling: Vec<Sectors>,
    /// Where holes are on their way into the journal, and for how many requests.
    holes: BTreeMap<Span, usize>,
    /// The longest of these holes since there was none.
    longest: u64,
}

impl Ghosts {
    /// True if one of these sectors is a ghost, and no hole of it is on its way.
    pub fn overlap(&self, span: &Span) -> bool {
        self.evicted.overlaps(span) || self.settling.iter().any(|own| own.overlaps(span))
    }

    /// True if a hole of one of these sectors is on its way.
    pub fn overlap_hole(&self, span: &Span) -> bool {
        let at = |start| Span { inode: span.inode, start, end: 0 };
        let near = at(span.start.saturating_sub(self.longest))..at(span.end);
        self.holes.range(near).any(|(own, _)| own.overlaps(span))
    }

    /// These extents were evicted: the holes that they leave.
    pub fn evict(&mut self, holes: &[Key]) {
        holes.iter().for_each(|hole| self.evicted.add(Span::of(hole)));
    }

    /// A hole of these sectors was laid, and is pending.
    pub fn lay(&mut self, span: Span) {
        self.evicted.remove(&span);
        self.settling.iter_mut().for_each(|own| own.remove(&span));
        self.longest = self.longest.max(span.end - span.start);
        *self.holes.entry(span).or_default() += 1;
    }

    /// That hole is durable.
    pub fn end_hole(&mut self, span: &Span) {
        let count = self.holes.get_mut(span).expect("it was laid");
        *count -= 1;
        if *count == 0 {
            self.holes.remove(span);
        }
        if self.holes.is_empty() {
            self.longest = 0;
        }
    }

    /// A checkpoint begins.
    pub fn begin_checkpoint(&mut self) {
        self.settling.push(std::mem::take(&mut self.evicted));
    }

    /// It has ended, and all that began before it: leaves have the holes.
    pub fn end_checkpoint(&mut self) {
        self.settling.clear();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use cairn_format::bcache::Key;
    use proptest::prelude::*;

    use super::{Ghosts, Sectors};
    use crate::bcache::btree::Span;

    fn sectors_of(span: &Span) -> impl Iterator<Item = (u32, u64)> {
        let inode = span.inode;
        (span.start..span.end).map(move |sector| (inode, sector))
    }

    proptest! {
        #[test]
        fn sectors_are_those_of_a_set_of_sectors(
            changes in proptest::collection::vec((0..4, 0..2_u32, 0..60_u64, 1..20_u64), 1..60),
        ) {
            let (mut sectors, mut model) = (Sectors::default(), BTreeSet::new());
            for (kind, inode, start, count) in changes {
                let span = Span { inode, start, end: start + count };
                match kind {
                    0 => sectors.remove(&span),
                    _ => sectors.add(span),
                }
                for sector in sectors_of(&span) {
                    if kind == 0 { model.remove(&sector) } else { model.insert(sector) };
                }
                for start in 0..90 {
                    let span = Span { inode, start, end: start + 3 };
                    let expected = sectors_of(&span).any(|sector| model.contains(&sector));
                    prop_assert_eq!(sectors.overlaps(&span), expected);
                }
                let spans: Vec<_> = sectors.spans.iter().collect();
                let apart = |pair: &[(&(u32, u64), &u64)]| {
                    pair[0].0.0 != pair[1].0.0 || *pair[0].1 < pair[1].0.1
                };
                prop_assert!(spans.windows(2).all(apart), "they neither overlap nor touch");
            }
        }
    }

    #[test]
    fn a_ghost_ends_with_its_hole_or_with_a_checkpoint_that_began_later() {
        let mut ghosts = Ghosts::default();
        let span = |start, end| Span { inode: 1, start, end };
        ghosts.evict(&[Key::new(1, 20, 10), Key::new(1, 40, 10)]);
        assert!(ghosts.overlap(&span(19, 20)) && !ghosts.overlap(&span(20, 30)));
        ghosts.lay(span(15, 25));
        assert!(ghosts.overlap(&span(10, 20)) && !ghosts.overlap(&span(15, 20)));
        assert!(ghosts.overlap_hole(&span(24, 30)) && !ghosts.overlap_hole(&span(25, 30)));
        ghosts.begin_checkpoint();
        ghosts.evict(&[Key::new(1, 60, 5)]);
        ghosts.end_checkpoint();
        assert!(!ghosts.overlap(&span(0, 55)) && ghosts.overlap(&span(55, 60)));
        ghosts.lay(span(15, 25));
        ghosts.end_hole(&span(15, 25));
        assert!(ghosts.overlap_hole(&span(15, 16)), "another one is on its way");
        ghosts.end_hole(&span(15, 25));
        assert!(!ghosts.overlap_hole(&span(15, 16)));
    }
}

//! The sectors for which leaves on the device may have other keys than the tree in memory.
//!
//! A leaf is brought up to date by one bset: the extents that the tree in memory has in these
//! sectors, and holes between them. So keys that are replaced before their leaf is written are
//! never written there, and the order in which ranges are written does not matter.

use std::collections::VecDeque;

use cairn_block::yield_once;
use cairn_format::bcache::{Key, SIZE_MAX};

use super::Node;
use super::extents::Position;
use super::lookup::upper;
use crate::bcache::work;

/// The loops over leaves end: each leaf takes a part of what is left.
pub(super) const TAKES: &str =
    "the last leaf reaches the highest position, and no key lies behind it";

/// Sectors of a volume, half-open.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in super::super) struct Span {
    pub inode: u32,
    pub start: u64,
    pub end: u64,
}

impl Span {
    pub fn of(key: &Key) -> Span {
        Span { inode: key.inode(), start: key.start(), end: key.end() }
    }

    fn begin(&self) -> (u32, u64) {
        (self.inode, self.start)
    }

    fn finish(&self) -> (u32, u64) {
        (self.inode, self.end)
    }

    /// True if both have a sector.
    pub fn overlaps(&self, other: &Span) -> bool {
        self.begin() < other.finish() && other.begin() < self.finish()
    }

    /// Adds holes for these sectors up to `end`, which is not beyond the end, and drops them.
    fn skip_to(&mut self, end: u64, keys: &mut Vec<Key>) {
        while self.start < end {
            let sectors = (end - self.start).min(SIZE_MAX);
            self.start += sectors;
            keys.push(Key::new(self.inode, self.start, sectors));
        }
    }

    /// Adds the keys that make a leaf have these extents, and no others, in these sectors. The
    /// extents are in order; the first is the first that ends behind the start.
    pub(super) fn keys_of<'k>(
        mut self,
        extents: impl Iterator<Item = &'k Key>,
        keys: &mut Vec<Key>,
    ) {
        let end = (self.inode, self.end);
        for extent in extents.take_while(|key| key.begin() < end) {
            let part = extent.part(self.start, self.end).expect("they overlap");
            self.skip_to(part.start(), keys);
            self.start = part.end();
            keys.push(part);
        }
        self.skip_to(self.end, keys);
    }
}

/// See the module's description: in order, and no two of them touch.
#[derive(Debug, Default, PartialEq, Eq)]
pub(in super::super) struct Unwritten {
    spans: VecDeque<Span>,
}

impl Unwritten {
    /// The sectors of keys, which may be in any order and overlap: of few keys, or of those that
    /// are in order.
    pub fn of<'k>(keys: impl IntoIterator<Item = &'k Key>) -> Unwritten {
        let mut unwritten = Unwritten::default();
        unwritten.add(keys);
        unwritten
    }

    /// The sectors of keys, which may be in any order and overlap. Many keys take many turns of the
    /// reactor: some are sorted at once, and what is sorted is merged. Keys in order need no merge.
    pub async fn gather(keys: &[Key]) -> Unwritten {
        if keys.len() <= work::piece() / 2 {
            return Unwritten::of(keys);
        }
        let mut runs: VecDeque<Vec<Span>> = VecDeque::new();
        for some in keys.chunks(work::piece() / 2) {
            work::begin();
            work::did(some.len());
            let own = sorted(some);
            match runs.back_mut().filter(|run| run.last() <= own.first()) {
                Some(run) => own.into_iter().for_each(|span| push(run, span)),
                None => runs.push_back(own),
            }
            yield_once().await;
        }
        while runs.len() > 1 {
            let (first, second) = (runs.pop_front(), runs.pop_front());
            let merged = merge(first.unwrap_or_default(), second.unwrap_or_default()).await;
            runs.push_back(merged);
        }
        Unwritten { spans: runs.pop_front().unwrap_or_default().into() }
    }

    /// Adds the sectors of keys.
    pub fn add<'k>(&mut self, keys: impl IntoIterator<Item = &'k Key>) {
        let mut spans: Vec<Span> = self.spans.drain(..).collect();
        spans.extend(keys.into_iter().filter(|key| key.sectors() > 0).map(Span::of));
        self.spans = joined(spans).into();
    }

    /// True if leaves on the device have the keys of the tree in memory.
    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// True if some of these sectors are among them.
    pub fn overlaps(&self, span: &Span) -> bool {
        self.overlaps_between(span.begin(), span.finish())
    }

    /// The same of the sectors between two positions.
    pub fn overlaps_between(&self, from: Position, upto: Position) -> bool {
        let first = self.spans.partition_point(|own| own.finish() <= from);
        self.spans.get(first).is_some_and(|own| own.begin() < upto)
    }

    /// Where the first sectors begin.
    pub(super) fn first(&self) -> Option<(u32, u64)> {
        self.spans.front().map(Span::begin)
    }

    /// Takes the sectors of a leaf, of which there are some; those beyond the leaf stay.
    pub(super) fn take_part(&mut self, leaf: &Node) -> Vec<Span> {
        let first = self.first();
        assert!(first < Some(leaf.position()), "{TAKES}: {first:?}");
        let mut part = Vec::new();
        while let Some(span) = self.spans.front_mut().filter(|it| it.begin() < leaf.position()) {
            let end = upper(leaf, span.inode).min(span.end);
            part.push(Span { end, ..*span });
            span.start = end;
            if span.start == span.end {
                self.spans.pop_front();
            }
        }
        part
    }

    /// Puts back what was taken last.
    pub(super) fn put_back(&mut self, part: Vec<Span>) {
        part.into_iter().rev().for_each(|span| self.spans.push_front(span));
    }
}

/// The sectors of keys, in order.
fn sorted<'k>(keys: impl IntoIterator<Item = &'k Key>) -> Vec<Span> {
    joined(keys.into_iter().filter(|key| key.sectors() > 0).map(Span::of).collect())
}

/// Sorts spans, and makes one of those that touch.
fn joined(mut spans: Vec<Span>) -> Vec<Span> {
    spans.sort_unstable();
    let mut joined = Vec::with_capacity(spans.len());
    spans.into_iter().for_each(|span| push(&mut joined, span));
    joined
}

/// Adds a span that begins behind the beginnings of all others.
fn push(spans: &mut Vec<Span>, span: Span) {
    match spans.last_mut() {
        Some(last) if last.inode == span.inode && span.start <= last.end => {
            last.end = last.end.max(span.end);
        }
        _ => spans.push(span),
    }
}

/// Merges two lists that are in order.
async fn merge(first: Vec<Span>, second: Vec<Span>) -> Vec<Span> {
    let mut merged = Vec::with_capacity(first.len() + second.len());
    let (mut first, mut second) = (first.into_iter().peekable(), second.into_iter().peekable());
    loop {
        work::begin();
        work::did(work::piece());
        for _ in 0..work::piece() {
            let next = match (first.peek(), second.peek()) {
                (Some(one), Some(other)) if other < one => second.next(),
                (Some(_), _) => first.next(),
                (None, _) => second.next(),
            };
            let Some(span) = next else { return merged };
            push(&mut merged, span);
        }
        yield_once().await;
    }
}

#[cfg(test)]
mod tests {
    use cairn_format::bcache::{Generation, Key, Pointer, SIZE_MAX};
    use futures_util::FutureExt;
    use proptest::prelude::*;

    use super::{Span, Unwritten};

    fn span(start: u64, end: u64) -> Span {
        Span { inode: 1, start, end }
    }

    /// The value of a future that yields, and waits for nothing.
    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let mut future = Box::pin(future);
        loop {
            if let Some(value) = future.as_mut().now_or_never() {
                return value;
            }
        }
    }

    fn extent(start: u64, end: u64) -> Key {
        Key::new(1, end, end - start).at(Pointer::new(4096 + start, Generation(3)))
    }

    #[test]
    fn spans_that_touch_or_overlap_are_one() {
        let keys = [extent(8, 16), extent(30, 40), extent(0, 4), extent(12, 20), extent(4, 8)];
        let mut unwritten = Unwritten::of(&keys);
        assert_eq!(unwritten.spans, [span(0, 20), span(30, 40)]);
        unwritten.add(&[extent(20, 30), extent(50, 50)]);
        assert_eq!(unwritten.spans, [span(0, 40)]);
    }

    #[test]
    fn sectors_overlap_a_span_that_has_one_of_them() {
        let unwritten = Unwritten::of(&[extent(0, 10), extent(20, 30)]);
        assert!(unwritten.overlaps(&span(9, 12)) && !unwritten.overlaps(&span(10, 20)));
        assert!(!unwritten.overlaps(&Span { inode: 2, start: 0, end: 90 }));
    }

    proptest! {
        #[test]
        fn gathered_keys_are_those_sorted_at_once(
            keys in proptest::collection::vec((0..3_u32, 0..100_000_u64, 0..9_u64), 0..20_000),
            in_order in 0..20_000_usize,
        ) {
            let key = |(inode, start, sectors)| Key::new(inode, start + sectors, sectors);
            let mut keys: Vec<Key> = keys.into_iter().map(key).collect();
            let in_order = in_order.min(keys.len());
            keys[..in_order].sort_unstable_by_key(Key::begin);
            let gathered = block_on(Unwritten::gather(&keys));
            prop_assert_eq!(gathered, Unwritten::of(&keys));
        }
    }

    #[test]
    fn a_span_becomes_its_extents_and_the_holes_between_them() {
        let extents = [extent(0, 12), extent(12, 16), extent(20, 40)];
        let hole = |start, end| Key::new(1, end, end - start);
        let mut keys = Vec::new();
        span(8, 24).keys_of(extents.iter(), &mut keys);
        let part = |index: usize, start, end| extents[index].part(start, end).expect("within it");
        assert_eq!(keys, [part(0, 8, 12), extents[1], hole(16, 20), part(2, 20, 24)]);
        keys.clear();
        span(100, 100 + SIZE_MAX + 1).keys_of([].iter(), &mut keys);
        let cut = 100 + SIZE_MAX;
        assert_eq!(keys, [hole(100, cut), hole(cut, cut + 1)]);
    }
}

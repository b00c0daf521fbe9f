//! [`Inflight`]: which chains of a split ring were taken and not used, in memory that the driver's
//! side keeps when this process dies.
//!
//! The next server takes these chains again, before any other and in the order in which they were
//! taken; then it goes on behind them. A chain that the driver has seen as used is not taken again.
//!
//! The layout is that of the vhost-user protocol, "inflight I/O tracking", for split rings. A
//! region of a queue has a head of 16 bytes: features (8), version (2), entries (2), the head of
//! the last batch (2), and the used index as of the end of that batch (2). An entry of 16 bytes for
//! each descriptor follows: a mark (1, here written with the byte behind it), padding, the next
//! chain of its batch (2, at byte 6), and the place in the order of taking (8).
//!
//! The order of stores, each visible before the next:
//! 1. A chain is taken: its place in the order, then its mark. Its request starts afterwards.
//! 2. Chains are used, all that are ready at a time: they are linked as a batch; the used index of
//!    the ring is published; their marks are cleared; the used index is kept in the region.
//!
//! I1. A death before the index is published leaves the marks of the whole batch, and both indexes
//!     are equal: all of it is taken again. The driver has seen none of it.
//! I2. A death afterwards leaves the indexes different by the size of the batch, until the last
//!     store. So the batch is known, and its marks are cleared by the next server.
//!
//! The memory is the peer's as well: what is read from it is judged like a ring.

use super::memory::Window;
use super::wire::Breach;

const VERSION: u16 = 1;

/// Bytes of a region's head, and of an entry.
const HEAD_BYTES: usize = 16;
const ENTRY_BYTES: usize = 16;

/// Regions begin at multiples of this.
pub(super) const REGION_ALIGN: usize = 64;

const VERSION_AT: usize = 8;
const ENTRIES_AT: usize = 10;
const BATCH_AT: usize = 12;
const USED_AT: usize = 14;

/// Within an entry.
const NEXT_AT: usize = 6;
const ORDER_AT: usize = 8;

/// In the features of the first region, in either layout: a flag of ours, and that it means
/// something. The protocol gives these bytes no meaning yet.
const WRITE_THROUGH: u64 = 1 << 62;
const IS_SET: u64 = 1 << 63;

/// Whether the driver chose that writes are volatile until a flush; none if it is not known.
pub(super) fn kept_writeback(window: &Window) -> Option<bool> {
    let flags = u64::from_le_bytes(window.load(0));
    (flags & IS_SET != 0).then_some(flags & WRITE_THROUGH == 0)
}

/// Keeps it for the next server: the driver does not repeat what it chose.
pub(super) fn keep_writeback(window: &Window, writeback: bool) {
    let flags = if writeback { IS_SET } else { IS_SET | WRITE_THROUGH };
    window.store(0, &flags.to_le_bytes());
}

/// See the module's description.
pub(super) struct Inflight {
    region: Window,
    entries: u16,
    /// The place in the order of the next chain that is taken.
    order: u64,
}

impl Inflight {
    /// Bytes of the region of a queue with so many entries.
    pub(super) fn region_bytes(entries: u16) -> usize {
        (HEAD_BYTES + usize::from(entries) * ENTRY_BYTES).next_multiple_of(REGION_ALIGN)
    }

    /// Goes on with the region of a ring whose used index is `used`. Answers the heads of the
    /// chains to take again, in order.
    pub(super) fn open(
        region: Window,
        entries: u16,
        used: u16,
    ) -> Result<(Inflight, Vec<u16>), Breach> {
        let mut inflight = Inflight { region, entries, order: 0 };
        if inflight.region.load_u16(VERSION_AT) == 0 {
            inflight.region.store_u16(ENTRIES_AT, entries);
            inflight.region.store_u16(USED_AT, used);
            inflight.region.store_u16(VERSION_AT, VERSION);
            return Ok((inflight, Vec::new()));
        }
        let version = inflight.region.load_u16(VERSION_AT);
        if version != VERSION {
            return Err(Breach::field("inflight: version", version, "1"));
        }
        let found = inflight.region.load_u16(ENTRIES_AT);
        if found != entries {
            return Err(Breach::field("inflight: entries", found, "as many as the ring has"));
        }
        inflight.end_batch(used)?;
        let heads = inflight.marked();
        Ok((inflight, heads))
    }

    /// Clears the marks of a batch that was published (I2).
    fn end_batch(&mut self, used: u16) -> Result<(), Breach> {
        let published = used.wrapping_sub(self.region.load_u16(USED_AT));
        if published > self.entries {
            let found = format!("{published} chains");
            return Err(Breach::field("inflight: batch", found, "at most a ring"));
        }
        let mut head = self.region.load_u16(BATCH_AT);
        for _ in 0..published {
            if head >= self.entries {
                return Err(Breach::field("inflight: chain of a batch", head, "one of the ring"));
            }
            self.region.store_u16(self.entry(head), 0);
            head = self.region.load_u16(self.entry(head) + NEXT_AT);
        }
        self.region.store_u16(USED_AT, used);
        Ok(())
    }

    /// The heads with a mark, in the order in which they were taken.
    fn marked(&mut self) -> Vec<u16> {
        let order = |head| u64::from_le_bytes(self.region.load(self.entry(head) + ORDER_AT));
        let is_marked = |head: &u16| self.region.load_u16(self.entry(*head)) & 0xff != 0;
        let mut marked: Vec<(u64, u16)> =
            (0..self.entries).filter(is_marked).map(|head| (order(head), head)).collect();
        marked.sort_unstable();
        self.order = marked.last().map_or(0, |(order, _)| order.wrapping_add(1));
        marked.into_iter().map(|(_, head)| head).collect()
    }

    fn entry(&self, head: u16) -> usize {
        HEAD_BYTES + usize::from(head) * ENTRY_BYTES
    }

    /// A chain is taken; its head is one of the ring.
    pub(super) fn note_taken(&mut self, head: u16) {
        let entry = self.entry(head);
        self.region.store(entry + ORDER_AT, &self.order.to_le_bytes());
        self.region.store_u16(entry, 1);
        self.order = self.order.wrapping_add(1);
    }

    /// A chain is about to be published as used, together with those before it.
    pub(super) fn note_used(&mut self, head: u16) {
        let before = self.region.load_u16(BATCH_AT);
        self.region.store_u16(self.entry(head) + NEXT_AT, before);
        self.region.store_u16(BATCH_AT, head);
    }

    /// The chains were published: `used` is the used index now.
    pub(super) fn note_published(&mut self, heads: impl Iterator<Item = u16>, used: u16) {
        for head in heads {
            self.region.store_u16(self.entry(head), 0);
        }
        self.region.store_u16(USED_AT, used);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, VecDeque};

    use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

    use super::Inflight;
    use crate::vhost_user::memory::{Window, stores};

    const ENTRIES: u16 = 8;

    fn region() -> Window {
        let file = memfd_create("inflight", MemfdFlags::CLOEXEC).unwrap();
        let bytes = Inflight::region_bytes(ENTRIES);
        ftruncate(&file, bytes as u64).unwrap();
        Window::of_file(&file, 0, bytes as u64).unwrap()
    }

    /// A ring as its driver sees it: the index that says how many chains were used.
    struct Ring {
        region: Window,
        index: Window,
    }

    /// Takes and uses chains in batches until the stores that a life has are spent. `taken` are
    /// those that were started, `seen` those that the driver has seen as used.
    fn live(ring: &Ring, script: &[(&[u16], &[u16])], taken: &mut Vec<u16>, seen: &mut Vec<u16>) {
        let used = ring.index.load_u16(0);
        let (mut inflight, _) = Inflight::open(ring.region.part(), ENTRIES, used).unwrap();
        let mut used = used;
        for (takes, uses) in script {
            for head in *takes {
                inflight.note_taken(*head);
                if stores::are_left() {
                    taken.push(*head);
                }
            }
            uses.iter().for_each(|head| inflight.note_used(*head));
            used = used.wrapping_add(uses.len() as u16);
            ring.index.store_u16(0, used);
            if ring.index.load_u16(0) == used {
                seen.extend(*uses);
            }
            inflight.note_published(uses.iter().copied(), used);
        }
    }

    #[test]
    fn after_a_death_between_any_two_stores_what_was_not_seen_runs_again_in_order() {
        let script: [(&[u16], &[u16]); 4] =
            [(&[0, 1, 2], &[1]), (&[3, 1], &[0, 3]), (&[], &[1, 2]), (&[5, 0], &[0])];
        let mut lives = BTreeSet::new();
        for left in 0.. {
            let ring = Ring { region: region(), index: region() };
            let (mut taken, mut seen) = (Vec::new(), Vec::new());
            Inflight::open(ring.region.part(), ENTRIES, 0).unwrap();
            let spent = stores::with(left, || live(&ring, &script, &mut taken, &mut seen));
            let mut expected: VecDeque<u16> = taken.iter().copied().collect();
            for head in &seen {
                let at = expected.iter().position(|other| other == head).unwrap();
                expected.remove(at);
            }
            let used = ring.index.load_u16(0);
            for _ in 0..2 {
                let (_, again) = Inflight::open(ring.region.part(), ENTRIES, used).unwrap();
                // A death between the mark and the start of its request: it runs once, too.
                let started = again.iter().filter(|head| expected.contains(head));
                assert_eq!(started.copied().collect::<Vec<_>>(), Vec::from(expected.clone()));
                assert!(again.len() <= expected.len() + 1, "{left}: {again:?}");
                assert!(again.iter().all(|head| !seen.contains(head) || taken.contains(head)));
            }
            lives.insert(taken.len());
            if !spent {
                assert_eq!((taken.len(), seen.len()), (7, 6));
                break;
            }
        }
        assert_eq!(lives, (0..=7).collect());
    }

    #[test]
    fn a_new_region_has_nothing_to_run_again_wherever_the_ring_is() {
        let region = region();
        let (_, again) = Inflight::open(region.part(), ENTRIES, 77).unwrap();
        assert!(again.is_empty(), "{again:?}");
        let (mut inflight, again) = Inflight::open(region.part(), ENTRIES, 77).unwrap();
        assert!(again.is_empty(), "{again:?}");
        inflight.note_taken(3);
        assert_eq!(Inflight::open(region.part(), ENTRIES, 77).unwrap().1, [3]);
    }

    #[test]
    fn a_region_that_makes_no_sense_is_refused() {
        let changed = |at: usize, value: u16| {
            let region = region();
            Inflight::open(region.part(), ENTRIES, 0).unwrap();
            region.store_u16(at, value);
            Inflight::open(region.part(), ENTRIES, 2).is_err()
        };
        assert!(changed(super::VERSION_AT, 2));
        assert!(changed(super::ENTRIES_AT, 16));
        assert!(changed(super::USED_AT, 9), "more than a ring was used");
        assert!(changed(super::BATCH_AT, ENTRIES));
        assert!(changed(super::HEAD_BYTES + super::NEXT_AT, u16::MAX));
    }
}

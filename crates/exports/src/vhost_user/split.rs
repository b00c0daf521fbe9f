//! [`SplitRing`]: the split virtqueue, from the device's side.
//!
//! The driver writes descriptors and the heads of chains that are available; the device writes the
//! heads that it has used. Each side has an index that only grows, modulo 2^16, and may ask the
//! other not to notify it, or (with `EVENT_IDX`) to notify it only at an index.
//!
//! Source: the virtio specification 1.2, section 2.7.
//!
//! - R1. Every field that the driver wrote is read once, so that what was judged is what is used.
//! - R2. A chain has at most [`CHAIN_MAX`] descriptors, and so has a table of indirect ones. So
//!   loops end.
//! - R3. A used element is complete before the index that publishes it is visible.
//! - R4. Before this side sleeps it asks to be notified, and looks again. Before it omits a
//!   notification it has published, and then reads whether the driver wants one. Between both steps
//!   is a full fence, on both sides: one of the two sees the other.

use std::collections::VecDeque;
use std::sync::atomic::{Ordering, fence};

use super::chain::{CHAIN_MAX, Chain, DESCRIPTOR_BYTES, Descriptor, INDIRECT, NEXT};
use super::inflight::Inflight;
use super::memory::{Buffers, GuestMemory, Window};
use super::wire::{Breach, RingAddresses};

/// Bytes of a used element.
const USED_BYTES: usize = 8;

/// In the flags of either side: it wants no notification.
const NO_NOTIFICATION: u16 = 1;

/// Where the index is, in what is available and in what is used; then come the elements.
const INDEX_AT: usize = 2;
const ELEMENTS_AT: usize = 4;

/// See the module's description.
pub(super) struct SplitRing {
    entries: u16,
    descriptors: Window,
    available: Window,
    used: Window,
    /// The sides name the index at which they want to be notified.
    event_idx: bool,
    next_available: u16,
    next_used: u16,
    /// `next_used` when the driver was last considered for a notification.
    considered: u16,
    /// A table of indirect descriptors.
    table: Vec<u8>,
    /// What the next server must know.
    inflight: Option<Inflight>,
    /// Chains that an earlier server took and did not use; they come first.
    again: VecDeque<u16>,
}

impl SplitRing {
    /// The ring of so many entries, a power of two, at these addresses, whose next chain is the one
    /// at `base`.
    pub(super) fn new(
        memory: &GuestMemory,
        entries: u16,
        addresses: RingAddresses,
        base: u16,
        event_idx: bool,
    ) -> Result<SplitRing, Breach> {
        let count = usize::from(entries);
        let window = |user, bytes, align| {
            let outside = || Breach::field("address of a ring", user, "an aligned one in memory");
            memory.window(user, bytes, align).ok_or_else(outside)
        };
        // The last two bytes of what is available and used name the index of a notification.
        let used = window(addresses.used, ELEMENTS_AT + count * USED_BYTES + 2, 4)?;
        let next_used = used.load_u16(INDEX_AT);
        Ok(SplitRing {
            entries,
            descriptors: window(addresses.descriptors, count * DESCRIPTOR_BYTES, 16)?,
            available: window(addresses.available, ELEMENTS_AT + count * 2 + 2, 2)?,
            used,
            event_idx,
            next_available: base,
            next_used,
            considered: next_used,
            table: Vec::new(),
            inflight: None,
            again: VecDeque::new(),
        })
    }

    /// The index of the next chain.
    pub(super) fn base(&self) -> u16 {
        self.next_available
    }

    /// True if a chain is available.
    pub(super) fn has_next(&self) -> bool {
        !self.again.is_empty() || self.available.load_u16(INDEX_AT) != self.next_available
    }

    /// Takes the next chain into `chain`, which is empty. False if none is available. One that is
    /// refused is not taken: once the driver's side has given other memory, it is read again.
    pub(super) fn take(&mut self, memory: &Buffers, chain: &mut Chain) -> Result<bool, Breach> {
        if let Some(&head) = self.again.front() {
            self.read_chain(head, memory, chain)?;
            self.again.pop_front();
            return Ok(true);
        }
        let index = self.available.load_u16(INDEX_AT);
        match index.wrapping_sub(self.next_available) {
            0 => return Ok(false),
            waiting if waiting > self.entries => {
                return Err(Breach::field("available index", index, "at most a ring ahead"));
            }
            _ => {}
        }
        let slot = usize::from(self.next_available % self.entries);
        let head = u16::from_le_bytes(self.available.load(ELEMENTS_AT + 2 * slot));
        if head >= self.entries {
            return Err(Breach::field("head of a chain", head, "a descriptor of the ring"));
        }
        self.read_chain(head, memory, chain)?;
        self.next_available = self.next_available.wrapping_add(1);
        if let Some(inflight) = &mut self.inflight {
            inflight.note_taken(head);
        }
        Ok(true)
    }

    fn read_chain(&mut self, head: u16, memory: &Buffers, chain: &mut Chain) -> Result<(), Breach> {
        chain.head = head;
        let descriptors = &self.descriptors;
        let direct = |index| descriptors.load(usize::from(index) * DESCRIPTOR_BYTES);
        let count = usize::from(self.entries);
        let last = walk(direct, count, chain.head, memory, chain)?;
        let Some(table) = last else { return Ok(()) };
        table.read_table(memory, &mut self.table)?;
        let entry = |index| {
            let at = usize::from(index) * DESCRIPTOR_BYTES;
            std::array::from_fn(|byte| self.table[at + byte])
        };
        let count = self.table.len() / DESCRIPTOR_BYTES;
        match walk(entry, count, 0, memory, chain)? {
            None => Ok(()),
            Some(_) => Err(Breach::field("descriptor", "indirect in a table", "a direct one")),
        }
    }

    /// Goes on with the chains that an earlier server took and did not use.
    /// `region` has room for `entries` descriptors, perhaps more than the ring.
    pub(super) fn track(&mut self, region: Window, entries: u16) -> Result<(), Breach> {
        let (inflight, again) = Inflight::open(region, entries, self.next_used)?;
        if let Some(head) = again.iter().find(|head| **head >= self.entries) {
            return Err(Breach::field("inflight: head of a chain", head, "one of the ring"));
        }
        if !again.is_empty() {
            // The index that the driver's side gives does not count them.
            self.next_available = self.next_used.wrapping_add(again.len() as u16);
        }
        (self.inflight, self.again) = (Some(inflight), again.into());
        Ok(())
    }

    /// Uses chains, each with how many bytes were written to it, and shows them to the driver (R3).
    /// True if it wants to be notified (R4).
    pub(super) fn use_all(&mut self, chains: &[(u16, u32)]) -> bool {
        for (head, written) in chains {
            self.note_used(*head, *written);
            if let Some(inflight) = &mut self.inflight {
                inflight.note_used(*head);
            }
        }
        let is_wanted = self.publish();
        if let Some(inflight) = &mut self.inflight {
            inflight.note_published(chains.iter().map(|(head, _)| *head), self.next_used);
        }
        is_wanted
    }

    fn note_used(&mut self, head: u16, written: u32) {
        let slot = usize::from(self.next_used % self.entries);
        let element = u64::from(head) | u64::from(written) << 32;
        self.used.store(ELEMENTS_AT + USED_BYTES * slot, &element.to_le_bytes());
        self.next_used = self.next_used.wrapping_add(1);
    }

    fn publish(&mut self) -> bool {
        self.used.store_u16(INDEX_AT, self.next_used);
        fence(Ordering::SeqCst);
        let before = std::mem::replace(&mut self.considered, self.next_used);
        if !self.event_idx {
            return self.available.load_u16(0) & NO_NOTIFICATION == 0;
        }
        let wanted = self.available.load_u16(ELEMENTS_AT + 2 * usize::from(self.entries));
        let passed = self.next_used.wrapping_sub(wanted).wrapping_sub(1);
        passed < self.next_used.wrapping_sub(before)
    }

    /// Asks to be notified of the next chain. True if one is available already (R4).
    pub(super) fn ask_for_kick(&mut self) -> bool {
        if self.event_idx {
            let at = ELEMENTS_AT + USED_BYTES * usize::from(self.entries);
            self.used.store_u16(at, self.next_available);
        } else {
            self.used.store_u16(0, 0);
        }
        fence(Ordering::SeqCst);
        self.has_next()
    }

    /// Asks not to be notified. With `EVENT_IDX` the driver has passed the index already.
    pub(super) fn refuse_kicks(&mut self) {
        if !self.event_idx {
            self.used.store_u16(0, NO_NOTIFICATION);
        }
    }
}

/// Appends the memory of the descriptors from `index`, of which there are `count`, to `chain` (R2).
/// The last one is returned if it names a table of indirect descriptors.
fn walk(
    read: impl Fn(u16) -> [u8; DESCRIPTOR_BYTES],
    count: usize,
    mut index: u16,
    memory: &Buffers,
    chain: &mut Chain,
) -> Result<Option<Descriptor>, Breach> {
    for _ in 0..count.min(CHAIN_MAX) {
        if usize::from(index) >= count {
            return Err(Breach::field("index of a descriptor", index, "one in the table"));
        }
        let descriptor = Descriptor::decode_split(read(index)); // R1
        let has_next = descriptor.flags & NEXT != 0;
        if descriptor.flags & INDIRECT != 0 {
            return match has_next {
                true => Err(Breach::field("descriptor", "indirect with a next", "one of both")),
                false => Ok(Some(descriptor)),
            };
        }
        chain.push(&descriptor, memory)?;
        if !has_next {
            return Ok(None);
        }
        index = descriptor.link;
    }
    Err(Breach::field("chain of descriptors", "a loop, or a longer one", "at most 1024"))
}

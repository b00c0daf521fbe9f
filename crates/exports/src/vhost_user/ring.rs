//! [`AnyRing`]: the virtqueue of a queue, in the layout that the driver chose.

use super::chain::Chain;
use super::inflight::Inflight;
use super::inflight_packed::PackedInflight;
use super::memory::{Buffers, GuestMemory, Window};
use super::packed::PackedRing;
use super::split::SplitRing;
use super::wire::{Breach, RingAddresses};

/// The most entries of a ring.
const ENTRIES_MAX: u32 = 1 << 15;

/// How the parts of a ring lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// Descriptors, what is available, and what is used are apart.
    Split,
    /// One ring of descriptors.
    Packed,
}

impl Layout {
    /// Judges how many entries a ring has.
    pub(super) fn check_entries(self, field: &'static str, entries: u32) -> Result<(), Breach> {
        let (is_allowed, expected) = match self {
            Layout::Split => (entries.is_power_of_two(), "a power of two up to 32768"),
            Layout::Packed => (entries > 0, "1 to 32768"),
        };
        match is_allowed && entries <= ENTRIES_MAX {
            true => Ok(()),
            false => Err(Breach::field(field, entries, expected)),
        }
    }

    /// Judges where a ring is to go on: in a split ring the index of the next chain.
    pub(super) fn check_base(self, base: u32) -> Result<(), Breach> {
        match self == Layout::Packed || u16::try_from(base).is_ok() {
            true => Ok(()),
            false => Err(Breach::field("base of a ring", base, "a number of 16 bits")),
        }
    }

    /// Bytes of what is kept of the chains in flight, for a queue with so many entries.
    pub(super) fn inflight_bytes(self, entries: u16) -> usize {
        match self {
            Layout::Split => Inflight::region_bytes(entries),
            Layout::Packed => PackedInflight::region_bytes(entries),
        }
    }
}

/// What a driver says of a ring.
#[derive(Clone, Copy)]
pub(super) struct RingFacts {
    pub(super) layout: Layout,
    pub(super) entries: u32,
    pub(super) addresses: RingAddresses,
    /// Where it goes on.
    pub(super) base: u32,
    /// Notifications may be asked for by where they are to come.
    pub(super) event_idx: bool,
}

/// See the module's description.
pub(super) enum AnyRing {
    Split(SplitRing),
    Packed(PackedRing),
}

impl AnyRing {
    pub(super) fn new(memory: &GuestMemory, facts: RingFacts) -> Result<AnyRing, Breach> {
        let RingFacts { layout, entries, addresses, base, event_idx } = facts;
        layout.check_entries("entries of a ring", entries)?;
        layout.check_base(base)?;
        let entries = entries as u16;
        Ok(match layout {
            Layout::Split => {
                AnyRing::Split(SplitRing::new(memory, entries, addresses, base as u16, event_idx)?)
            }
            Layout::Packed => {
                AnyRing::Packed(PackedRing::new(memory, entries, addresses, base, event_idx)?)
            }
        })
    }

    /// Goes on with the chains that an earlier server took and did not use. `region` has room for
    /// `entries` descriptors, perhaps more than the ring.
    pub(super) fn track(&mut self, region: Window, entries: u16) -> Result<(), Breach> {
        match self {
            AnyRing::Split(ring) => ring.track(region, entries),
            AnyRing::Packed(ring) => ring.track(region, entries),
        }
    }

    /// Where the ring goes on.
    pub(super) fn base(&self) -> u32 {
        match self {
            AnyRing::Split(ring) => ring.base().into(),
            AnyRing::Packed(ring) => ring.base(),
        }
    }

    /// True if a chain is available.
    pub(super) fn has_next(&self) -> bool {
        match self {
            AnyRing::Split(ring) => ring.has_next(),
            AnyRing::Packed(ring) => ring.has_next(),
        }
    }

    /// Takes the next chain into `chain`. False if none is available.
    pub(super) fn take(&mut self, memory: &Buffers, chain: &mut Chain) -> Result<bool, Breach> {
        chain.clear();
        match self {
            AnyRing::Split(ring) => ring.take(memory, chain),
            AnyRing::Packed(ring) => ring.take(memory, chain),
        }
    }

    /// Uses chains that were taken, each with how many bytes were written to it, and shows them to
    /// the driver. True if it wants to be notified.
    pub(super) fn use_all(&mut self, chains: &[(u16, u32)]) -> bool {
        match self {
            AnyRing::Split(ring) => ring.use_all(chains),
            AnyRing::Packed(ring) => ring.use_all(chains),
        }
    }

    /// Asks to be notified of the next chain. True if one is available already.
    pub(super) fn ask_for_kick(&mut self) -> bool {
        match self {
            AnyRing::Split(ring) => ring.ask_for_kick(),
            AnyRing::Packed(ring) => ring.ask_for_kick(),
        }
    }

    /// Asks not to be notified.
    pub(super) fn refuse_kicks(&mut self) {
        match self {
            AnyRing::Split(ring) => ring.refuse_kicks(),
            AnyRing::Packed(ring) => ring.refuse_kicks(),
        }
    }
}

//! [`Known`]: what is known of a driver: all that a session needs to go on, here or in another
//! process.
//!
//! A session that has left keeps no ring that runs: what its rings took is published. So the place
//! of each ring, and memory that both sides share, say all about requests.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use cairn_block::sync::Mutex;

use crate::front::Shutdown;

use super::blk::Features;
use super::channel::Half;
use super::inflight::REGION_ALIGN;
use super::memory::{GuestMemory, Window};
use super::notifier::Notifier;
use super::queue::{self, Call};
use super::ring::{Layout, RingFacts};
use super::wire::{Breach, InflightFacts, ProtocolFeatures, RingAddresses};

/// See the module's description.
pub(super) struct Known {
    pub(super) socket: Arc<OwnedFd>,
    /// What was received of a message.
    pub(super) half: Half,
    /// The socket for messages of this side.
    pub(super) backend: Option<Arc<OwnedFd>>,
    pub(super) features: Features,
    pub(super) protocol: ProtocolFeatures,
    pub(super) memory: GuestMemory,
    /// Which requests are in flight.
    pub(super) inflight: Option<InflightMemory>,
    pub(super) rings: Vec<Ring>,
}

impl Known {
    /// A driver that has said nothing, and may use so many rings.
    pub(super) fn new(socket: OwnedFd, queues: u16) -> Known {
        Known {
            socket: Arc::new(socket),
            half: Half::default(),
            backend: None,
            features: Features::empty(),
            protocol: ProtocolFeatures::empty(),
            memory: GuestMemory::default(),
            inflight: None,
            rings: (0..queues).map(|_| Ring::default()).collect(),
        }
    }
}

/// What a ring that runs is stopped by.
#[derive(Default)]
pub(super) struct Running {
    pub(super) stop: Arc<Shutdown>,
    pub(super) ended: Arc<Mutex<queue::Ended>>,
}

impl Running {
    /// A ring that stopped by itself. The next message that stops it hears how.
    pub(super) fn failed(base: u32, owes: bool) -> Running {
        let ended = queue::Ended { base, owes, has_failed: true };
        Running { ended: Arc::new(Mutex::new(ended)), ..Running::default() }
    }
}

/// What is known of a ring.
#[derive(Default)]
pub(super) struct Ring {
    pub(super) entries: u32,
    pub(super) addresses: Option<RingAddresses>,
    pub(super) base: u32,
    pub(super) kick: Option<Notifier>,
    pub(super) call: Call,
    pub(super) error: Call,
    pub(super) enabled: bool,
    pub(super) owes: bool,
    pub(super) was_started: bool,
    /// It had stopped by itself when it was last stopped.
    pub(super) has_failed: bool,
    /// It ran when the session left another process.
    pub(super) goes_on: bool,
    pub(super) running: Option<Running>,
}

impl Ring {
    /// How it is to be used, if the driver has said where it is.
    pub(super) fn facts(&self, features: Features) -> Option<RingFacts> {
        let event_idx = features.contains(Features::EVENT_IDX);
        let (layout, entries, base) = (features.layout(), self.entries, self.base);
        self.addresses.map(|addresses| RingFacts { layout, entries, addresses, base, event_idx })
    }
}

/// Memory for what is in flight, for all rings.
pub(super) struct InflightMemory {
    pub(super) window: Window,
    pub(super) facts: InflightFacts,
    /// For another process.
    pub(super) file: Arc<OwnedFd>,
}

impl InflightMemory {
    /// Maps it.
    pub(super) fn new(facts: InflightFacts, file: Arc<OwnedFd>) -> Result<InflightMemory, Breach> {
        if facts.bytes < REGION_ALIGN as u64 {
            return Err(Breach::field("inflight: memory", facts.bytes, "room for a ring"));
        }
        let window = Window::of_file(&file, facts.offset, facts.bytes)?;
        Ok(InflightMemory { window, facts, file })
    }

    /// What is kept of the ring `index`, which has so many entries.
    pub(super) fn region(
        &self,
        layout: Layout,
        index: usize,
        ring_entries: u32,
    ) -> Result<Window, Breach> {
        let bytes = layout.inflight_bytes(self.facts.entries);
        let region = self.window.slice(index * bytes, bytes).ok_or_else(|| {
            Breach::field("inflight: memory", "no room for a ring", "room for all rings")
        })?;
        if ring_entries > u32::from(self.facts.entries) {
            let expected = "at most those in the memory for what is in flight";
            return Err(Breach::field("entries of a ring", ring_entries, expected));
        }
        Ok(region)
    }
}

/// The memory that rings of these facts need, of an export with so many queues.
pub(super) fn inflight_bytes(
    layout: Layout,
    facts: InflightFacts,
    offered: u16,
) -> Result<u64, Breach> {
    let InflightFacts { queues, entries, .. } = facts;
    if queues == 0 || queues > offered {
        return Err(Breach::field("inflight: queues", queues, "at most those offered"));
    }
    layout.check_entries("inflight: entries", entries.into())?;
    Ok(u64::from(queues) * layout.inflight_bytes(entries) as u64)
}

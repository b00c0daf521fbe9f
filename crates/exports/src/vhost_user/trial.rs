//! Tries of a ring on memory with any content, and of records of sessions, for fuzzers.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::blk::Request;
use super::chain::Chain;
use super::handover::PartedSession;
use super::memory::{GuestMemory, Window};
use super::ring::{AnyRing, Layout, RingFacts};
use super::wire::{Breach, RegionFacts, RingAddresses};

/// Where the guest has the memory.
const GUEST: u64 = 0x10000;

/// A ring in a file of memory.
#[derive(Clone, Copy, Debug)]
pub struct Trial {
    /// How many of the file's bytes are the memory.
    pub bytes: u64,
    /// How many entries the ring has.
    pub entries: u16,
    /// Where descriptors, what is used, and what is available begin.
    pub places: [u64; 3],
    /// Where the ring goes on.
    pub base: u32,
    /// It is a packed ring.
    pub is_packed: bool,
    /// The sides name where they want to be notified.
    pub event_idx: bool,
    /// Where what an earlier server left in flight begins, if there was one.
    pub inflight: Option<u64>,
}

impl Trial {
    /// Takes the chains that the ring offers, as a session does, and publishes them as used.
    /// Returns how many requests there were.
    ///
    /// # Errors
    /// What breaks the protocol: the chains before it were taken.
    pub fn take_all(&self, file: &Arc<OwnedFd>) -> Result<usize, Breach> {
        let mut memory = GuestMemory::default();
        let region = RegionFacts { guest: GUEST, user: 0, bytes: self.bytes, offset: 0 };
        memory.add(region, file.clone())?;
        let [descriptors, used, available] = self.places;
        let facts = RingFacts {
            layout: if self.is_packed { Layout::Packed } else { Layout::Split },
            entries: self.entries.into(),
            addresses: RingAddresses { descriptors, used, available },
            base: self.base,
            event_idx: self.event_idx,
        };
        let mut ring = AnyRing::new(&memory, facts)?;
        if let Some(at) = self.inflight {
            let bytes = facts.layout.inflight_bytes(self.entries);
            let all = Window::of_file(file, 0, self.bytes)?;
            let Some(region) = all.slice(at as usize, bytes) else { return Ok(0) };
            ring.track(region, self.entries)?;
        }
        let buffers = memory.buffers();
        let (mut requests, mut chain) = (0, Chain::default());
        // What the ring writes may change its own descriptors: a driver's fault, which must end.
        while requests < 1 << 16 {
            if !ring.take(&buffers, &mut chain)? {
                break;
            }
            let request = Request::decode(&chain, &buffers)?;
            assert_eq!(request.data(&chain, &buffers).bytes() as u64, request.bytes);
            buffers.store(request.status, 0);
            ring.use_all(&[(chain.head, 1)]);
            ring.ask_for_kick();
            requests += 1;
        }
        Ok(requests)
    }
}

/// Judges a session of another process as one of an export with so many queues, and checks what it
/// was taken for. Answers how many rings would run.
///
/// # Errors
/// It makes no sense.
pub fn judge_session(session: PartedSession, queues: u16) -> Result<usize, Breach> {
    let known = session.judge(queues)?;
    assert_eq!(known.rings.len(), usize::from(queues));
    let in_memory = |begin: u64, bytes: u64| {
        let holds = |facts: RegionFacts| {
            begin.checked_sub(facts.user).is_some_and(|at| at + bytes <= facts.bytes)
        };
        known.memory.regions().any(|(facts, _)| holds(facts))
    };
    let running = known.rings.iter().filter(|ring| ring.goes_on);
    for ring in running.clone() {
        let facts = ring.facts(known.features).expect("a ring that runs is described");
        let RingAddresses { descriptors, used, available } = facts.addresses;
        let entries = u64::from(facts.entries);
        assert!(ring.kick.is_some() && (1..=1 << 15).contains(&entries));
        assert!(in_memory(descriptors, 16 * entries));
        match facts.layout {
            Layout::Split => {
                assert!(in_memory(available, 4 + 2 * entries) && in_memory(used, 4 + 8 * entries));
            }
            Layout::Packed => assert!(in_memory(available, 4) && in_memory(used, 4)),
        }
    }
    Ok(running.count())
}

//! Tries of a ring on memory with any content, for fuzzers.

use std::os::fd::OwnedFd;

use super::blk::Request;
use super::chain::Chain;
use super::memory::GuestMemory;
use super::split::SplitRing;
use super::wire::{Breach, RegionFacts, RingAddresses};

/// Where the guest has the memory.
const GUEST: u64 = 0x10000;

/// Takes the chains that a ring of `entries` entries offers, as a session does, and publishes them
/// as used. The memory is the file's first `bytes` bytes; descriptors, what is used and what is
/// available begin at `places`. Returns how many requests there were.
///
/// # Errors
/// What breaks the protocol: the chains before it were taken.
pub fn take_all(
    file: &OwnedFd,
    bytes: u64,
    entries: u32,
    places: [u64; 3],
    event_idx: bool,
) -> Result<usize, Breach> {
    let mut memory = GuestMemory::default();
    memory.add(RegionFacts { guest: GUEST, user: 0, bytes, offset: 0 }, file)?;
    let [descriptors, used, available] = places;
    let addresses = RingAddresses { descriptors, used, available };
    let mut ring = SplitRing::new(&memory, entries, addresses, 0, event_idx)?;
    let buffers = memory.buffers();
    let mut requests = 0;
    // What the ring writes may change its own descriptors: a driver's fault, which must end.
    while requests < 1 << 16 {
        let mut chain = Chain::default();
        if !ring.take(&buffers, &mut chain)? {
            break;
        }
        let head = chain.head;
        let request = Request::decode(&mut chain)?;
        let _ = request.range();
        assert_eq!(request.status.bytes(), 1);
        request.status.copy_in(0, &[0]);
        ring.use_all(&[(head, 1)]);
        ring.ask_for_kick();
        requests += 1;
    }
    Ok(requests)
}

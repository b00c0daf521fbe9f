//! The front: what every protocol does in the same way before a disk sees a client's request.
//!
//! - [`Front`]: what all servers of a world share: the memory budget, and the disks that they
//!   serve.
//! - [`SharedDisk`]: a disk with the state that its clients share, whatever their protocol: the
//!   gate between partial and whole writes, and the account of its memory.
//! - [`Queue`]: the requests of one client on one reactor: admission, memory, completion, losses.
//! - [`widen`]: byte ranges on a disk of blocks, by read-modify-write.
//! - [`Shutdown`]: draining and cutting what clients use; [`Pause`]: all clients of a server wait,
//!   and go on or leave it; [`Intake`]: whether one client is heard.
//!
//! F1. Within a front, a disk has one [`SharedDisk`] as long as any server uses it. (The registry
//!     sees to it that a device has one [`Disk`].) So a read-modify-write of any client excludes
//!     the writes of all others. A world has one front.
//!
//! Must never: know a wire format, a socket or a shared ring; decide what an error is called.

mod budget;
mod gate;
mod pause;
mod queue;
mod shutdown;
mod signal;
pub(crate) mod widen;

use std::sync::{Arc, Weak};

use cairn_block::sync::Mutex;
use cairn_block::sync::atomic::{AtomicU32, Ordering};
use cairn_block::{Disk, Mail, Post, ReactorId, SharedTraffic, StreamId};

use budget::{Account, Budget};
use gate::WriteGate;

pub(crate) use pause::{Pause, Phase};
pub(crate) use queue::{Halted, Intake, Queue, Room};
pub(crate) use shutdown::{Level, Membership, Shutdown};
pub(crate) use signal::{First, Signal, first};

/// Free buffers may take 1 / `IDLE_PART` of the memory for payloads.
pub const IDLE_PART: usize = 4;

/// Each reactor keeps at least this many bytes of free buffers.
const IDLE_BYTES_MIN: usize = 4 << 20;

/// See the module's description.
pub struct Front {
    reactors: u16,
    budget: Arc<Budget>,
    disks: Mutex<Vec<Weak<SharedDisk>>>,
    streams: AtomicU32,
}

impl Front {
    /// A front for the reactors of `post`. The payloads of all clients, about `clients` of them,
    /// may take `memory_bytes`. The reactors keep free buffers in addition: 1 / [`IDLE_PART`] of it
    /// together, and never less than a few MiB per reactor.
    pub fn new(post: &dyn Post, memory_bytes: usize, clients: usize) -> Arc<Front> {
        let reactors = post.reactors();
        let idle = (memory_bytes / IDLE_PART / usize::from(reactors)).max(IDLE_BYTES_MIN);
        for reactor in (0..reactors).map(ReactorId) {
            post.post(reactor, Mail::Call(Box::new(move |env| env.keep_idle_buffers(idle))));
        }
        let (budget, disks) = (Budget::new(memory_bytes, clients), Mutex::default());
        Arc::new(Front { reactors, budget, disks, streams: AtomicU32::new(0) })
    }

    /// The memory that payloads take now, in bytes.
    pub fn memory_held(&self) -> usize {
        self.budget.held()
    }

    /// The state that all clients of `disk` share (F1).
    pub(crate) fn share(self: &Arc<Self>, disk: &Arc<dyn Disk>) -> Arc<SharedDisk> {
        let mut disks = self.disks.lock();
        disks.retain(|shared| shared.strong_count() > 0);
        let mut known = disks.iter().filter_map(Weak::upgrade);
        if let Some(shared) = known.find(|shared| Arc::ptr_eq(&shared.disk, disk)) {
            return shared;
        }
        let shared = Arc::new(SharedDisk {
            disk: disk.clone(),
            front: self.clone(),
            gate: WriteGate::new(self.reactors),
            account: self.budget.account(),
        });
        disks.push(Arc::downgrade(&shared));
        shared
    }

    /// A number for the requests of another client; none has it until 2^32 clients have come.
    fn next_stream(&self) -> StreamId {
        StreamId(self.streams.fetch_add(1, Ordering::Relaxed).wrapping_add(1))
    }
}

/// A disk with what all its clients share.
pub(crate) struct SharedDisk {
    pub(crate) disk: Arc<dyn Disk>,
    front: Arc<Front>,
    gate: WriteGate,
    account: Arc<Account>,
}

impl SharedDisk {
    /// Counts for an export of the disk.
    pub(crate) fn new_traffic(&self) -> Arc<SharedTraffic> {
        Arc::new(SharedTraffic::new(self.front.reactors))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cairn_backends::MemoryDisk;
    use cairn_block::{Disk, SectorCount};
    use cairn_reactor::PostOffice;

    use super::Front;

    #[test]
    fn disk_has_one_gate_for_all_servers_until_the_last_one_leaves() {
        let front = Front::new(&*PostOffice::new(1), 1 << 20, 1);
        let disks: [Arc<dyn Disk>; 2] =
            [0, 1].map(|_| Arc::new(MemoryDisk::new(SectorCount(8)).unwrap()) as _);
        let (first, second) = (front.share(&disks[0]), front.share(&disks[0].clone()));
        assert!(Arc::ptr_eq(&first, &second));
        assert!(!Arc::ptr_eq(&first, &front.share(&disks[1])));
        drop((first, second));
        front.share(&disks[1]);
        assert!(front.disks.lock().len() <= 2, "nothing is kept of disks that no server uses");
    }
}

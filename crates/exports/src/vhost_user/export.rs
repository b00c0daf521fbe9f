//! [`Export`]: one disk behind one socket, as its session uses it.

use std::path::PathBuf;
use std::sync::Arc;

use cairn_block::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use cairn_block::{Disk, Env, Limits, SECTOR_BYTES, SectorCount, SharedTraffic, Throttle};
use event_listener::Event;

use crate::front::{First, Level, Pause, Phase, SharedDisk, Shutdown, first};
use crate::unix_socket::SocketRights;

use super::blk::{Config, SERIAL_BYTES};

/// What to serve at a socket.
pub struct VhostExport {
    /// Its name in messages, and its serial number.
    pub name: String,
    /// The disk.
    pub disk: Arc<dyn Disk>,
    /// Refuse writes, even if the disk would take them.
    pub read_only: bool,
    /// The path of the unix socket.
    pub socket: PathBuf,
    /// Who may connect to it.
    pub rights: SocketRights,
    /// How many queues a driver may use.
    pub queues: u16,
    /// What all requests of its drivers pass.
    pub throttle: Arc<Throttle>,
}

/// A pause of tasks of one kind.
#[derive(Default)]
pub(super) struct Stage {
    pub(super) pause: Arc<Pause>,
    /// Counts the tasks.
    pub(super) tasks: Arc<Shutdown>,
}

impl Stage {
    /// How many tasks do not wait. A task that ends does not count as one that waits.
    pub(super) fn busy(&self) -> usize {
        let waiting = self.pause.waiting();
        self.tasks.users().saturating_sub(waiting)
    }
}

/// The pause of a server, in two stages. A session that waits starts and stops no ring; so once all
/// of them wait, rings only come to wait, or end.
#[derive(Default)]
pub(super) struct Pauses {
    /// Of the tasks of exports, each with its session.
    pub(super) sessions: Stage,
    /// Of the rings that run.
    pub(super) rings: Stage,
}

/// What an export takes. It may change at any time: a request asks once, and the engine judges what
/// follows from it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts {
    /// The size, without a partial last block.
    pub(super) bytes: u64,
    /// The smallest unit.
    pub(super) block_bytes: u64,
    pub(super) is_read_only: bool,
    /// The data of a write must not change until the write has ended.
    pub(super) copies_data: bool,
    pub(super) discards: bool,
}

/// An export in service.
pub(super) struct Export {
    pub(super) name: String,
    read_only: bool,
    pub(super) queues: u16,
    pub(super) shared: Arc<SharedDisk>,
    pub(super) throttle: Arc<Throttle>,
    pub(super) traffic: Arc<SharedTraffic>,
    /// Counts the task that accepts sessions, and serves one at a time.
    pub(super) shutdown: Arc<Shutdown>,
    /// Counts the session, if there is one.
    pub(super) sessions: Arc<Shutdown>,
    /// Drivers wait, or leave for another process.
    pub(super) pauses: Arc<Pauses>,
    /// What a driver chose last: writes are volatile until a flush. It outlives sessions: a driver
    /// that connects again does not repeat it.
    pub(super) writeback: AtomicBool,
    /// A driver that has left was not told of a loss.
    pub(super) owes: AtomicBool,
    /// Counts how often the size of the disk has changed.
    sizes: AtomicU64,
    /// The size when it was looked at.
    seen: AtomicU64,
    resized: Event,
}

impl Export {
    pub(super) fn new(export: VhostExport, shared: Arc<SharedDisk>, pauses: Arc<Pauses>) -> Export {
        let VhostExport { name, read_only, queues, throttle, .. } = export;
        let (shutdown, sessions, sizes, resized) = Default::default();
        let export = Export {
            name,
            read_only,
            queues,
            traffic: shared.new_traffic(),
            shared,
            throttle,
            shutdown,
            sessions,
            pauses,
            writeback: AtomicBool::new(true),
            owes: AtomicBool::new(false),
            sizes,
            seen: AtomicU64::new(0),
            resized,
        };
        export.look_at_size();
        export
    }

    /// The session, or the task without one, waits in a pause. An export that is stopped does not.
    pub(super) async fn wait_for_end_of_pause(&self) -> Phase {
        let pause = &self.pauses.sessions.pause;
        let _waiting = pause.wait();
        let ended = pause.phase_that(|phase| phase != Phase::Pausing);
        match first(self.shutdown.above(Level::Serving), ended).await {
            First::Left(_) => Phase::Going,
            First::Right(phase) => phase,
        }
    }

    /// What a request that is started on the reactor of `env` may ask for.
    pub(super) fn facts(&self, env: &Env) -> Facts {
        self.judge(env.facts_of(&*self.shared.disk))
    }

    /// What requests may ask for on any reactor.
    fn shared_facts(&self) -> Facts {
        let disk = &self.shared.disk;
        self.judge((disk.sectors(), disk.limits()))
    }

    fn judge(&self, (sectors, limits): (SectorCount, Limits)) -> Facts {
        let bytes = sectors.to_bytes();
        let block_bytes = u64::from(limits.logical_block).max(SECTOR_BYTES);
        Facts {
            bytes: bytes - bytes % block_bytes,
            block_bytes,
            is_read_only: self.read_only || limits.read_only,
            copies_data: limits.stable_data,
            discards: limits.discard,
        }
    }

    /// The size now in bytes, without a partial last block.
    pub(super) fn size_bytes(&self) -> u64 {
        self.shared_facts().bytes
    }

    pub(super) fn is_read_only(&self) -> bool {
        self.shared_facts().is_read_only
    }

    /// The configuration space now.
    pub(super) fn config(&self) -> Config {
        let writeback = self.writeback.load(Ordering::SeqCst);
        Config::new(&self.shared.disk.limits(), self.size_bytes(), self.queues, writeback)
    }

    /// The serial number: the name, as much of it as there is room for. A longer name ends in a
    /// digest, so that two of them differ.
    pub(super) fn serial(&self) -> [u8; SERIAL_BYTES] {
        let mut serial = [0; SERIAL_BYTES];
        let name = self.name.as_bytes();
        if name.len() <= SERIAL_BYTES {
            serial[..name.len()].copy_from_slice(name);
            return serial;
        }
        // FNV-1a.
        let digest = name.iter().fold(0xcbf2_9ce4_8422_2325_u64, |digest, byte| {
            (digest ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
        });
        let digest = format!("-{:08x}", (digest ^ digest >> 32) as u32);
        let kept = SERIAL_BYTES - digest.len();
        serial[..kept].copy_from_slice(&name[..kept]);
        serial[kept..].copy_from_slice(digest.as_bytes());
        serial
    }

    /// How often the size has changed.
    pub(super) fn sizes(&self) -> u64 {
        self.sizes.load(Ordering::SeqCst)
    }

    /// Wakes those that wait for a change of the size, if it is another one than before.
    pub(super) fn look_at_size(&self) {
        let now = self.size_bytes();
        if self.seen.swap(now, Ordering::SeqCst) != now {
            self.sizes.fetch_add(1, Ordering::SeqCst);
            self.resized.notify(usize::MAX);
        }
    }

    /// Waits until the size has changed more often than so.
    pub(super) async fn resized_since(&self, seen: u64) -> u64 {
        let changed = || Some(self.sizes()).filter(|now| *now != seen);
        cairn_block::until_some(&self.resized, changed).await
    }
}

//! vhost-user-blk: virtual machines use a disk through rings in memory that both sides share.
//!
//! - [`wire`]: the messages of a session, without a socket: bytes in, messages and bytes out.
//! - `channel`: messages and descriptors over a socket.
//! - `session`: what one driver negotiates, and its rings as they start and stop.
//! - `memory`, `truncated`: the driver's memory, mapped; what becomes of a file that shrinks.
//! - `notifier`: how the two sides of a ring notify each other.
//! - `chain`: a request as a ring gives it.
//! - `ring`: the virtqueue of a queue, in one of two layouts: `split`, `packed`. `place`: where a
//!   side of a packed ring is.
//! - `inflight`, `inflight_packed`: which chains were taken and not used, for the next server.
//! - `blk`: the block device: features, configuration space, requests.
//! - `queue`: a ring that runs, on one reactor.
//! - [`trial`]: a ring on memory with any content, for fuzzers.
//! - `known`: what is known of a driver.
//! - `export`, `server`: disks behind sockets; which driver is served.
//! - `handover`: sessions that go on in another process.
//!
//! The peer is not trusted: what it sends, or writes into its memory, ends its session or stops one
//! of its rings at most. Data of requests stays in the peer's memory, which the disk reads and
//! writes directly.
//!
//! Deliberately absent: the log of changed pages that a live migration needs, IOMMU.

mod blk;
mod chain;
mod channel;
mod export;
mod handover;
mod inflight;
mod inflight_packed;
mod known;
mod memory;
mod notifier;
mod packed;
mod place;
mod queue;
mod ring;
mod server;
mod session;
mod split;
pub mod trial;
mod truncated;
pub mod wire;

pub use export::VhostExport;
pub use handover::{Estate, PartedExport, PartedSession, SessionRecord};
pub use server::{QUEUES_MAX, VhostUserServer, qemu_arguments};

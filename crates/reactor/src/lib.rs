//! One thread's world: ring, executor, timers, mailbox.
//!
//! [`Core`] is what both worlds share; [`Reactors`] is the real one (threads, a ring each, the
//! monotonic clock), the simulated one lives in `cairn-sim`. Disks and exports reach the ring
//! of their reactor through [`Driver`].

mod core;
mod driver;
mod executor;
mod mailbox;
mod reactors;
pub mod ring;
mod spin;
pub mod threads;
mod timers;
pub mod uring;

pub use crate::core::{Core, CoreParts};
pub use driver::{Direction, Driver, Keep, OpFuture, TransferFile};
pub use mailbox::{Bell, PostOffice};
pub use reactors::{Clock, MonotonicClock, Options, Reactors};
pub use ring::RingKind;

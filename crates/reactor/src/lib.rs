//! One reactor: a thread with its ring, executor, timers and mailbox.
//!
//! [`Core`] is the part that the real and the simulated world share. [`Reactors`] is the real world
//! (threads, a ring each, the monotonic clock); the simulated one is in `cairn-sim`. Disks and
//! exports reach the ring of their reactor through [`Driver`].

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
mod watch;

pub use crate::core::{Core, CoreParts};
pub use driver::{Direction, Driver, Keep, OpFuture, TransferFile};
pub use mailbox::{PostOffice, ReactorWaker};
pub use reactors::{Clock, MonotonicClock, Options, Reactors};
pub use ring::RingKind;
pub use watch::Watch;

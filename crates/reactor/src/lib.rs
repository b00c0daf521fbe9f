//! One thread's world: ring, executor, timers, mailbox.

pub mod ring;
pub mod threads;
pub mod uring;

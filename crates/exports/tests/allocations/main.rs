//! Counts the allocations of the ready path: after a warm-up there are none.
//!
//! The allocator counts on the threads that asked for it, so that a client in the same process does
//! not change the server's count.

// Clippy does not know otherwise that the helpers are test code.
#[cfg(test)]
mod counting;
#[cfg(test)]
mod nbd;
#[cfg(test)]
mod stack;

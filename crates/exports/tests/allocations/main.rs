//! Counts what the ready path takes from the allocator: after a warm-up, nothing.
//!
//! The allocator counts on the threads that asked for it, so that a client in the same process
//! does not disturb the server's count.

// Clippy takes the helpers for test code only if it is told so.
#[cfg(test)]
mod counting;
#[cfg(test)]
mod nbd;
#[cfg(test)]
mod stack;

//! Locks and atomics from one module: parking_lot and std, or shuttle's under `cfg(shuttle)`.
//!
//! With the feature `lock-stats` the locks measure how long they are held and waited for.
//!
//! Shared state uses these types so that a model checker can control the interleavings. No lock is
//! held across I/O or an await.

#[cfg(all(not(shuttle), feature = "lock-stats"))]
pub use crate::lock_stats::{Mutex, MutexGuard};
#[cfg(all(not(shuttle), not(feature = "lock-stats")))]
pub use parking_lot::{Mutex, MutexGuard};
#[cfg(not(shuttle))]
pub use std::sync::atomic;

/// Keeps its content in cache lines of its own, so that a write to it does not slow down users of
/// adjacent data. Processors fetch lines in pairs.
#[repr(align(128))]
#[derive(Debug, Default)]
pub struct Padded<T>(pub T);

#[cfg(shuttle)]
pub use model::Mutex;
#[cfg(shuttle)]
pub use shuttle::sync::MutexGuard;
#[cfg(shuttle)]
pub use shuttle::sync::atomic;

#[cfg(shuttle)]
mod model {
    /// shuttle's mutex with parking_lot's face: a poisoned lock is a failed test anyway.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        /// A lock around `value`.
        pub fn new(value: T) -> Mutex<T> {
            Mutex(shuttle::sync::Mutex::new(value))
        }

        /// Waits for the lock.
        pub fn lock(&self) -> shuttle::sync::MutexGuard<'_, T> {
            self.0.lock().expect("no holder of a lock panics")
        }
    }
}

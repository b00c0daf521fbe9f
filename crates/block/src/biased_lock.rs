//! A lock for content that many threads read and few change: while nothing is changed, readers of
//! different reactors write to no memory that they share.
//!
//! The content has a lock of its own, and so has a slot of each reactor. While a slot is open, it
//! has a reference to the content, and readers of its reactor take the lock of the slot alone.
//! Readers whose slot is closed take the lock of the content, as if it was a mutex. A thread that
//! is to change the content takes that lock, and closes the open slots. A slot opens only when
//! [`READS`] readers have taken the lock of the content since then. So a lock that is mostly taken
//! for changes costs no more than a mutex, however many reactors there are.
//!
//! # Invariants
//! L1. Slots are opened and closed under the lock of the content. The thread that is to change the
//!     content closes all of them before it looks at the content, and opens none. So it has the
//!     only reference.
//! L2. A reader uses the reference of a slot under the lock of the slot only, and keeps none. So
//!     the thread that closes the slot waits for the reader: each sees what the other has done
//!     before.
//! L3. Under the lock of a slot a reader takes no lock of this content. Under the lock of the
//!     content those of the slots are taken.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::ids::ReactorId;
use crate::sync::{Mutex, MutexGuard, Padded};

#[cfg(all(test, shuttle))]
mod interleavings;

/// So many readers take the lock of the content before slots open again. To close a slot of
/// another processor, and to open it, takes about as long as they do.
const READS: u32 = 8;

/// The content, and what its lock guards besides.
struct Content<T> {
    value: Arc<T>,
    /// The reactors whose slots are open.
    open: Vec<ReactorId>,
    /// How many readers took the lock of the content since slots were closed.
    reads: u32,
}

/// The reference of a reactor; none while the slot is closed.
type Slot<T> = Padded<Mutex<Option<Arc<T>>>>;

/// See the module's description.
pub struct BiasedLock<T> {
    content: Padded<Mutex<Content<T>>>,
    slots: Box<[Slot<T>]>,
}

impl<T> BiasedLock<T> {
    /// A lock around `value`, for as many reactors.
    pub fn new(reactors: u16, value: T) -> BiasedLock<T> {
        // The ready path opens slots, and allocates nothing.
        let open = Vec::with_capacity(usize::from(reactors));
        let content = Content { value: Arc::new(value), open, reads: 0 };
        let slot = |_| Padded(Mutex::new(None));
        BiasedLock {
            content: Padded(Mutex::new(content)),
            slots: (0..reactors).map(slot).collect(),
        }
    }

    /// Waits until no other thread uses the content.
    pub fn lock(&self) -> Exclusive<'_, T> {
        let mut content = self.content.0.lock();
        if !content.open.is_empty() {
            self.close(&mut content);
        }
        Exclusive(content)
    }

    /// L1.
    #[cold]
    fn close(&self, content: &mut Content<T>) {
        for reactor in content.open.drain(..) {
            *self.slots[usize::from(reactor.0)].0.lock() = None;
        }
        content.reads = 0;
    }

    /// Looks at the content, on this reactor, while no thread changes it. `look` does not use this
    /// lock (L3).
    #[inline]
    pub fn read<R>(&self, reactor: ReactorId, look: impl FnOnce(&T) -> R) -> R {
        let slot = &self.slots[usize::from(reactor.0)].0;
        let own = slot.lock();
        if let Some(value) = own.as_deref() {
            return look(value);
        }
        drop(own);
        self.read_locked(reactor, look)
    }

    /// The same with a closed slot.
    #[cold]
    fn read_locked<R>(&self, reactor: ReactorId, look: impl FnOnce(&T) -> R) -> R {
        let mut content = self.content.0.lock();
        let answer = look(&content.value);
        content.reads += 1;
        if content.reads >= READS {
            *self.slots[usize::from(reactor.0)].0.lock() = Some(content.value.clone());
            content.open.push(reactor);
        }
        answer
    }
}

/// The content is locked until this is dropped.
pub struct Exclusive<'a, T>(MutexGuard<'a, Content<T>>);

impl<T> Deref for Exclusive<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T> DerefMut for Exclusive<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        Arc::get_mut(&mut self.0.value).expect("L1: no slot is open")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: ReactorId = ReactorId(0);
    const SECOND: ReactorId = ReactorId(1);

    impl<T> BiasedLock<T> {
        fn is_open(&self, reactor: ReactorId) -> bool {
            self.slots[usize::from(reactor.0)].0.lock().is_some()
        }

        /// How many reads open the slot.
        fn open(&self, reactor: ReactorId) -> u32 {
            let mut reads = 0;
            while !self.is_open(reactor) {
                self.read(reactor, |_| ());
                reads += 1;
            }
            reads
        }
    }

    #[test]
    fn slots_open_after_readers_and_stay_open_while_nothing_is_changed() {
        let lock = BiasedLock::new(2, 7);
        assert_eq!(lock.open(FIRST), READS);
        assert_eq!(lock.open(SECOND), 1, "it closes none");
        assert!(lock.is_open(FIRST) && lock.is_open(SECOND));
        assert_eq!(lock.read(FIRST, |value| *value) + lock.read(SECOND, |value| *value), 14);
    }

    #[test]
    fn change_closes_all_slots_and_is_read_after_that() {
        let lock = BiasedLock::new(2, 7);
        assert_eq!((lock.open(FIRST), lock.open(SECOND)), (READS, 1));
        *lock.lock() += 1;
        assert!(!lock.is_open(FIRST) && !lock.is_open(SECOND));
        assert_eq!(lock.read(FIRST, |value| *value), 8);
        assert_eq!(lock.open(FIRST), READS - 1, "they are counted again");
        assert_eq!(*lock.lock(), 8);
    }
}

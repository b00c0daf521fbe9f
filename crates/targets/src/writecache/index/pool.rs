//! Memory in units of one kind, taken from the system a slab at a time.
//!
//! A request takes units that are allocated already: the background task adds a slab, allocated
//! outside the index's lock, before the last one is used up ([`Pool::is_low`], [`Pool::add`]). Only
//! if the task is too late does [`Pool::take`] allocate one itself. Slabs are never freed or moved:
//! a pool that has grown once does not grow again, and no growth costs more than a slab.

/// Units of a slab.
const SLAB: usize = 256;

/// A unit of a pool. An unused unit stores the number of another one.
pub(super) trait Pooled: Clone + Default {
    fn link(&self) -> u32;
    fn set_link(&mut self, other: u32);
}

/// The name of no unit.
const NONE: u32 = u32::MAX;

pub(super) struct Pool<T> {
    slabs: Vec<Box<[T; SLAB]>>,
    /// Units from this one on were never used.
    fresh: u32,
    /// The last unit given back.
    vacant: u32,
    in_use: usize,
}

/// Memory for a pool.
pub(super) struct Slab<T>(Box<[T; SLAB]>);

impl<T: Pooled> Slab<T> {
    pub fn new() -> Slab<T> {
        let units = vec![T::default(); SLAB].into_boxed_slice().try_into();
        Slab(units.ok().expect("as many as were made"))
    }
}

impl<T: Pooled> Pool<T> {
    /// A pool without memory.
    pub fn new() -> Pool<T> {
        Pool { slabs: Vec::new(), fresh: 0, vacant: NONE, in_use: 0 }
    }

    /// True if a slab should be added soon.
    pub fn is_low(&self) -> bool {
        self.slabs.len() * SLAB < self.in_use + SLAB / 2
    }

    /// Adds a slab if the pool is low.
    pub fn add(&mut self, slab: Slab<T>) {
        if self.is_low() {
            self.slabs.push(slab.0);
        }
    }

    /// Takes a unit; its content is arbitrary.
    pub fn take(&mut self) -> u32 {
        self.in_use += 1;
        if self.vacant != NONE {
            let name = self.vacant;
            self.vacant = self.get(name).link();
            return name;
        }
        if self.fresh as usize == self.slabs.len() * SLAB {
            self.slabs.push(Slab::new().0);
        }
        self.fresh += 1;
        self.fresh - 1
    }

    /// Gives a unit back.
    pub fn give(&mut self, name: u32) {
        let vacant = self.vacant;
        self.get_mut(name).set_link(vacant);
        self.vacant = name;
        self.in_use -= 1;
    }

    pub fn get(&self, name: u32) -> &T {
        &self.slabs[name as usize / SLAB][name as usize % SLAB]
    }

    pub fn get_mut(&mut self, name: u32) -> &mut T {
        &mut self.slabs[name as usize / SLAB][name as usize % SLAB]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, proptest};

    impl Pooled for u32 {
        fn link(&self) -> u32 {
            *self
        }
        fn set_link(&mut self, other: u32) {
            *self = other;
        }
    }

    proptest! {
        #[test]
        fn a_unit_is_its_users_alone_until_it_is_given_back(
            steps in proptest::collection::vec((any::<bool>(), 0usize..1000), 1..2000),
        ) {
            let mut pool = Pool::new();
            let mut users: Vec<(u32, u32)> = Vec::new();
            for (number, (takes, at)) in (0u32..).zip(steps) {
                if takes || users.is_empty() {
                    let name = pool.take();
                    *pool.get_mut(name) = number;
                    users.push((name, number));
                } else {
                    let (name, number) = users.swap_remove(at % users.len());
                    assert_eq!(*pool.get(name), number);
                    pool.give(name);
                }
            }
            assert_eq!(pool.in_use, users.len());
            assert!(users.iter().all(|&(name, number)| *pool.get(name) == number));
        }
    }
}

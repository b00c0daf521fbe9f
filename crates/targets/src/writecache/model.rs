//! The reference model of writecache: a map from sector to contents, for a client that has one
//! request in flight at a time.
//!
//! The model knows nothing of slots, commits or writeback: a read must return what was written
//! last. Two kinds of sectors are undetermined: discarded ones (any content is allowed), and those
//! of a failed write (old or new). If acknowledged writes are lost, a sector may hold anything that
//! it held since the last flush that succeeded.

use std::collections::BTreeMap;

/// What a sector may hold; sectors are named by one byte that fills them.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Sector {
    Holds(u8),
    /// One of these: writes to it failed.
    OneOf(Vec<u8>),
    Anything,
}

impl Sector {
    /// Either.
    fn or(self, other: Sector) -> Sector {
        let (mut these, those) = match (self, other) {
            (Sector::Anything, _) | (_, Sector::Anything) => return Sector::Anything,
            (these, those) => (these.held(), those.held()),
        };
        these.extend(those);
        these.sort_unstable();
        these.dedup();
        Sector::OneOf(these)
    }

    fn held(self) -> Vec<u8> {
        match self {
            Sector::Holds(byte) => vec![byte],
            Sector::OneOf(bytes) => bytes,
            Sector::Anything => unreachable!("it holds nothing in particular"),
        }
    }
}

/// A volume, sector by sector.
pub struct Model {
    sectors: BTreeMap<u64, Sector>,
    /// What sectors held since the last flush, before what they hold now.
    before: BTreeMap<u64, Sector>,
}

impl Model {
    /// A volume that holds what `contents` says.
    pub fn new(sectors: u64, contents: impl Fn(u64) -> u8) -> Model {
        let sectors = (0..sectors).map(|at| (at, Sector::Holds(contents(at)))).collect();
        Model { sectors, before: BTreeMap::new() }
    }

    /// All that completed is durable.
    pub fn flushed(&mut self) {
        self.before.clear();
    }

    /// What is written to these sectors is durable.
    pub fn flushed_in(&mut self, start: u64, count: u64) {
        (start..start + count).for_each(|at| _ = self.before.remove(&at));
    }

    /// What no flush covered may be lost.
    pub fn lost(&mut self) {
        for (at, before) in std::mem::take(&mut self.before) {
            let sector = self.sectors.remove(&at).expect("inside the volume");
            self.sectors.insert(at, sector.or(before));
        }
    }

    fn replace(&mut self, at: u64, new: Sector) {
        let old = self.sectors.insert(at, new).expect("inside the volume");
        let before = self.before.remove(&at);
        self.before.insert(at, before.map_or(old.clone(), |before| before.or(old)));
    }

    /// A write (or write-zeroes) of `byte` that ended; a failed one may have been done in part.
    pub fn write(&mut self, start: u64, count: u64, byte: u8, ok: bool) {
        for at in start..start + count {
            let (old, new) = (self.sectors[&at].clone(), Sector::Holds(byte));
            self.replace(at, if ok { new } else { old.or(new) });
        }
    }

    /// A discard that ended, or failed.
    pub fn discard(&mut self, start: u64, count: u64) {
        for at in start..start + count {
            self.replace(at, Sector::Anything);
        }
    }

    /// What was read.
    ///
    /// # Panics
    /// A sector holds what it must not.
    pub fn read(&mut self, start: u64, bytes: &[u8]) {
        for (at, bytes) in (start..).zip(bytes.chunks(512)) {
            let sector = self.sectors.get_mut(&at).expect("inside the volume");
            if *sector == Sector::Anything {
                // Not necessarily one byte all over, and free to change until it is written.
                continue;
            }
            let byte = bytes[0];
            assert!(bytes.iter().all(|&other| other == byte), "sector {at} is mixed");
            match &sector {
                Sector::Holds(held) => assert_eq!(byte, *held, "sector {at}"),
                Sector::OneOf(held) => assert!(held.contains(&byte), "sector {at}: {byte}"),
                Sector::Anything => unreachable!("skipped above"),
            }
        }
    }
}

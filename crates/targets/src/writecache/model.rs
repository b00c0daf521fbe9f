//! The naive twin of writecache: a map from sector to contents, for a client that does one thing
//! after the other.
//!
//! It knows nothing of slots, commits or writeback: whatever those do, what was written last is
//! what is read. Two kinds of sectors are loose: those that were discarded (any content that is
//! read settles them), and those of a write that failed (old or new).

use std::collections::BTreeMap;

/// What a sector may hold; sectors are named by one byte that fills them.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Sector {
    Holds(u8),
    /// One of these: writes to it failed.
    OneOf(Vec<u8>),
    Anything,
}

/// A volume, sector by sector.
pub struct Model {
    sectors: BTreeMap<u64, Sector>,
}

impl Model {
    /// A volume that holds what `contents` says.
    pub fn new(sectors: u64, contents: impl Fn(u64) -> u8) -> Model {
        let sectors = (0..sectors).map(|at| (at, Sector::Holds(contents(at)))).collect();
        Model { sectors }
    }

    /// A write (or write-zeroes) of `byte` that ended; a failed one may have been done in part.
    pub fn write(&mut self, start: u64, count: u64, byte: u8, ok: bool) {
        for at in start..start + count {
            let sector = self.sectors.get_mut(&at).expect("inside the volume");
            *sector = match sector.clone() {
                _ if ok => Sector::Holds(byte),
                Sector::Holds(old) => Sector::OneOf(vec![old, byte]),
                Sector::OneOf(mut old) => {
                    old.push(byte);
                    Sector::OneOf(old)
                }
                Sector::Anything => Sector::Anything,
            };
        }
    }

    /// A discard that ended, or failed.
    pub fn discard(&mut self, start: u64, count: u64) {
        for at in start..start + count {
            self.sectors.insert(at, Sector::Anything);
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

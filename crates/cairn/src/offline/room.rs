//! Which format a device holds, and hence which room's tools look at it.

use cairn_format::probe::{Kind, Signature};

/// A format with tools of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// A dm-writecache cache device.
    Writecache,
    /// A dm-snapshot exception store.
    Snapshot,
    /// The metadata of a dm-thin pool.
    Thin,
}

impl Room {
    /// The first of these that probing found.
    pub fn of(found: &[Signature]) -> Option<Room> {
        found.iter().find_map(|signature| match signature.kind {
            Kind::Writecache => Some(Room::Writecache),
            Kind::Snapshot => Some(Room::Snapshot),
            Kind::ThinMetadata => Some(Room::Thin),
            _ => None,
        })
    }
}

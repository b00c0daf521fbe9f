//! [`Nature`]: what a disk is made of, as far as it is known.
//!
//! Backends say it of the device that they opened; targets that only remap compose it. It may
//! change when a lower mapped device gets another table, so users ask when they need it.
//!
//! N1. A disk that is not volatile has made durable whatever completed. Only block devices say
//!     so, and what stands on nothing but such. A file never does: a flush of it also carries its
//!     allocation.

use crate::units::SectorCount;

/// What a disk is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nature {
    /// Seeks cost time; `None` if unknown.
    pub rotational: Option<bool>,
    /// A crash may lose what completed and was not flushed (N1); also if unknown.
    pub volatile: bool,
    /// How it is put together.
    pub shape: Shape,
}

/// How a disk is put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Not known.
    Unknown,
    /// One device.
    Single,
    /// Devices one after another.
    Linear,
    /// Chunks on devices in turn.
    Striped {
        /// Length of a chunk.
        chunk: SectorCount,
    },
    /// Stripes with parity: a write of less than a whole stripe reads first.
    Parity {
        /// Length of a chunk.
        chunk: SectorCount,
        /// Chunks of data in a stripe.
        data_members: u32,
    },
}

impl Nature {
    /// Nothing is known.
    pub const UNKNOWN: Nature = Nature { rotational: None, volatile: true, shape: Shape::Unknown };

    /// Of something of this shape that stands on all of `parts`.
    pub fn of_parts(parts: impl IntoIterator<Item = Nature>, shape: Shape) -> Nature {
        let mut parts = parts.into_iter();
        let Some(first) = parts.next() else { return Nature::UNKNOWN };
        parts.fold(Nature { shape, ..first }, |all, part| Nature {
            rotational: all.rotational.filter(|_| all.rotational == part.rotational),
            volatile: all.volatile || part.volatile,
            shape,
        })
    }
}

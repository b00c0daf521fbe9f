//! The driver's side of a packed ring.

use std::collections::BTreeMap;

use super::{NEXT, Piece, WRITE};

/// Entries of each packed ring: no power of two, and no multiple of the length of a chain.
pub const PACKED_ENTRIES: u16 = 13;

/// Flags of a descriptor: the laps in which it was made available, and used.
pub const PACKED_AVAILABLE: u16 = 1 << 7;
pub const PACKED_USED: u16 = 1 << 15;

/// A slot, and the wrap counter: 1 in the first lap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    pub slot: u16,
    pub wrap: bool,
}

impl Position {
    pub const BEGIN: Position = Position { slot: 0, wrap: true };

    pub fn bits(self) -> u16 {
        self.slot | u16::from(self.wrap) << 15
    }

    pub fn after(self, slots: u16) -> Position {
        match self.slot + slots {
            slot if slot >= PACKED_ENTRIES => {
                Position { slot: slot - PACKED_ENTRIES, wrap: !self.wrap }
            }
            slot => Position { slot, ..self },
        }
    }

    /// The flags that make the descriptor of this slot available.
    pub fn available_flags(self) -> u16 {
        if self.wrap { PACKED_AVAILABLE } else { PACKED_USED }
    }

    /// True if a descriptor with these flags was used in this lap.
    fn is_used(self, flags: u16) -> bool {
        let used = if self.wrap { PACKED_AVAILABLE | PACKED_USED } else { 0 };
        flags & (PACKED_AVAILABLE | PACKED_USED) == used
    }
}

/// A descriptor, without its address: bytes, name, flags.
pub(super) type Found = (u32, u16, u16);

/// See the module's description.
pub(super) struct PackedSide {
    /// Where the next chain goes.
    pub(super) available: Position,
    /// Where the next used descriptor comes.
    pub(super) used: Position,
    /// How many descriptors the chains in flight have, by name.
    slots: BTreeMap<u16, u16>,
    /// The chains that may be offered, by name.
    pub(super) chains: BTreeMap<u16, Vec<Piece>>,
    /// The names of what was used, and the bytes that were written.
    pub(super) seen: Vec<(u32, u32)>,
}

impl Default for PackedSide {
    fn default() -> PackedSide {
        let (available, used) = (Position::BEGIN, Position::BEGIN);
        let (slots, chains, seen) = Default::default();
        PackedSide { available, used, slots, chains, seen }
    }
}

impl PackedSide {
    /// The descriptors of a chain: slot, piece, flags. The first one is to be written last.
    pub(super) fn offer(&mut self, name: u16) -> Vec<(u16, Piece, u16)> {
        let pieces = self.chains.get(&name).expect("a chain of this name");
        let (taken, count) = (self.slots.values().sum::<u16>(), pieces.len() as u16);
        assert!(taken + count <= PACKED_ENTRIES, "room for {count} more than {taken}");
        assert_eq!(self.slots.insert(name, count), None, "a name that is free");
        let mut descriptors = Vec::new();
        for (number, piece) in pieces.iter().enumerate() {
            let write = if piece.2 { WRITE } else { 0 };
            let next = if number + 1 < pieces.len() { NEXT } else { 0 };
            let flags = self.available.available_flags() | write | next;
            descriptors.push((self.available.slot, *piece, flags));
            self.available = self.available.after(1);
        }
        descriptors.reverse();
        descriptors
    }

    /// Takes what was used.
    pub(super) fn see(&mut self, found: impl Fn(u16) -> Found) {
        loop {
            // The flags were written last.
            let (_, _, flags) = found(self.used.slot);
            if !self.used.is_used(flags) {
                return;
            }
            let (bytes, name, _) = found(self.used.slot);
            let slots = self.slots.remove(&name).expect("a chain that was offered is used once");
            self.seen.push((name.into(), bytes));
            self.used = self.used.after(slots);
        }
    }
}

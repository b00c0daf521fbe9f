//! Policies of the background writeback: which dirty extents go home next, and how their copies are
//! issued. The first three are those of kernels, to compare with; all of them flush the backing
//! device before they make a key clean, which no kernel does.

use crate::bcache::coverage::Path;

/// A policy, by the word of `writeback_policy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(in super::super) enum Policy {
    /// Before 2018: in order, each written when its read has completed; all of a buffer end before
    /// the next one begins.
    Completion,
    /// Since 2018: written in order.
    Strict,
    /// The patches of 2025: many in a row without a wait for the pace, in any order.
    Sorted,
    /// cairn's: the planner chooses, and what touches is one write.
    Sweep,
}

/// How copies are issued.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    /// Extents that touch are one write of so many sectors at most; 0: each is one write.
    pub merged_sectors: u64,
    /// How many copies are in flight at once: to a drive with an arm, whose clients wait for what
    /// is in its queue, and to one without.
    pub in_flight: [usize; 2],
    /// Writes are issued in the order of the extents.
    pub is_ordered: bool,
    /// All copies end after so many extents, before more begin.
    pub buffer_keys: usize,
    /// Extents that follow each other wait for the pace once: up to so many, and so many sectors.
    pub row_keys: usize,
    pub row_sectors: u64,
}

impl Policy {
    const ALL: [(Policy, &'static str); 4] = [
        (Policy::Completion, "completion"),
        (Policy::Strict, "strict"),
        (Policy::Sorted, "sorted"),
        (Policy::Sweep, "sweep"),
    ];

    /// The policy of a word.
    pub fn of_word(word: &str) -> Option<Policy> {
        Policy::ALL.into_iter().find(|(_, own)| *own == word).map(|(policy, _)| policy)
    }

    /// Its word.
    pub fn word(self) -> &'static str {
        Policy::ALL[self as usize].1
    }

    /// The policy of a number that is one of `policy as u8`.
    pub(super) fn of_number(number: u8) -> Policy {
        Policy::ALL[usize::from(number)].0
    }

    /// The path of a batch, for campaigns.
    pub(super) fn path(self) -> Path {
        match self {
            Policy::Completion => Path::Completion,
            Policy::Strict => Path::Strict,
            Policy::Sorted => Path::Sorted,
            Policy::Sweep => Path::Sweep,
        }
    }

    pub(super) fn shape(self) -> Shape {
        let kernels = Shape {
            merged_sectors: 0,
            in_flight: [64; 2],
            is_ordered: false,
            buffer_keys: 500,
            row_keys: 1,
            row_sectors: 0,
        };
        match self {
            Policy::Completion => kernels,
            Policy::Strict => Shape { is_ordered: true, row_keys: 5, row_sectors: 5000, ..kernels },
            Policy::Sorted => Shape { row_keys: 80, row_sectors: 80_000, ..kernels },
            Policy::Sweep => Shape::MERGED,
        }
    }
}

impl Shape {
    /// That of drains, too: writes of a mebibyte.
    pub const MERGED: Shape = Shape {
        merged_sectors: super::batch::WRITE_SECTORS,
        in_flight: [32, 64],
        is_ordered: true,
        buffer_keys: usize::MAX,
        row_keys: 1,
        row_sectors: 0,
    };

    /// To a device with parity while no client waits behind what is in its queue: what waits there
    /// together is written by rows, which read less the more of them is written.
    pub const GATHERED: Shape = Shape { in_flight: [256; 2], ..Shape::MERGED };
}

#[cfg(test)]
mod tests {
    use super::Policy;

    #[test]
    fn policies_have_words_and_numbers() {
        for (index, word) in ["completion", "strict", "sorted", "sweep"].into_iter().enumerate() {
            let policy = Policy::of_word(word).expect(word);
            assert_eq!((policy as usize, policy.word()), (index, word));
            assert_eq!(Policy::of_number(policy as u8), policy);
        }
        assert_eq!(Policy::of_word("Sweep"), None);
    }
}

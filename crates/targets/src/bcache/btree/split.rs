//! Cutting what a node no longer holds into nodes.
//!
//! A fresh node has one bset. If that takes more than four fifths of the node, it is cut, so that
//! each part has room for more bsets: into two parts of three fifths at most, or more parts where a
//! whole journal went into one leaf. No extent is cut: the position of a part is that of its last
//! key, and the next part begins with the key after it.

use cairn_format::bcache::Key;
use cairn_format::bcache::node::SET_HEADER_BYTES;

use super::node::bset_bytes;

/// How much of a node a part takes at most, of five parts.
const PART: usize = 3;

/// How much of a node a single bset may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Fill {
    /// Four fifths: there is room for more bsets.
    Roomy,
    /// All of it: the fewest nodes. So what was in a node as large fits into one again.
    Tight,
}

impl Fill {
    /// In bytes of a node of `capacity`.
    fn most(self, capacity: usize) -> usize {
        match self {
            Fill::Roomy => capacity * 4 / 5,
            Fill::Tight => capacity,
        }
    }
}

/// How many bytes of keys a part takes at most.
fn part_bytes(capacity: usize) -> usize {
    capacity * PART / 5 - SET_HEADER_BYTES
}

/// Cuts keys into parts for nodes of `capacity` bytes; one part if they fit into one node.
pub(super) fn split(keys: &[Key], capacity: usize, fill: Fill) -> Vec<&[Key]> {
    if bset_bytes(keys) <= fill.most(capacity) {
        return vec![keys];
    }
    let most = part_bytes(capacity);
    let mut parts = Vec::new();
    let (mut begin, mut bytes) = (0, 0);
    for (index, key) in keys.iter().enumerate() {
        if bytes + key.word_count() * 8 > most && index > begin {
            parts.push(&keys[begin..index]);
            (begin, bytes) = (index, 0);
        }
        bytes += key.word_count() * 8;
    }
    parts.push(&keys[begin..]);
    parts
}

/// How many parts that makes of so many keys of `key_bytes` each.
pub(super) fn parts_of(keys: usize, key_bytes: usize, capacity: usize, fill: Fill) -> usize {
    match SET_HEADER_BYTES + keys * key_bytes <= fill.most(capacity) {
        true => 1,
        false => keys.div_ceil(part_bytes(capacity) / key_bytes),
    }
}

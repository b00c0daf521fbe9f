//! Cutting what a node no longer holds into nodes.
//!
//! A fresh node has one set. If that takes more than four fifths of the node, it is cut, so that
//! each part has room for more sets: into two parts of three fifths at most, or more parts where a
//! whole journal went into one leaf. No extent is cut: the position of a part is that of its last
//! key, and the next part begins with the key after it.

use cairn_format::bcache::Key;
use cairn_format::bcache::node::SET_HEADER_BYTES;

use super::node::set_bytes;

/// How much of a node a single set may take, of five parts.
const FULL: usize = 4;
/// How much of a node a part takes at most, of five parts.
const PART: usize = 3;

/// Cuts keys into parts for nodes of `capacity` bytes; one part if they fit into one node.
pub(super) fn split(keys: &[Key], capacity: usize) -> Vec<&[Key]> {
    if set_bytes(keys) <= capacity * FULL / 5 {
        return vec![keys];
    }
    let most = capacity * PART / 5 - SET_HEADER_BYTES;
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

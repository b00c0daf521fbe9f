//! The most metadata blocks that a batch of changes can take. The data path reserves them before it
//! acknowledges a write.
//!
//! Blocks that a transaction frees become free only after its commit, so every fresh block counts.
//! The bound has these parts:
//!
//! - The *overhead* of any commit: each bitmap of both maps, and each node of every tree except the
//!   mapping trees, is shadowed at most once.
//! - The cost of the batch, per run of consecutive virtual blocks. A leaf has at least a third of
//!   its 252 entries, so a run of n blocks touches at most n/84 + 2 leaves. Each becomes one node,
//!   or is split into one more for every 252 blocks added to it, or is joined with a neighbour. The
//!   same holds on each level above, for far fewer entries.
//! - If leaves may be shared with a snapshot, the copy of a node raises the counts of the 252
//!   blocks that it points to, perhaps to 3. These are entries of a tree of counts, at least 168
//!   per split node.

use super::transaction::Transaction;

/// Fewest entries of a node with values of 8 bytes, unless it is a root.
const NODE_LEAST: u64 = 84;
/// Fewest counts in a leaf of a tree of counts.
const COUNTS_LEAST: u64 = 112;
/// Fewest entries in a leaf of the data index.
const INDEX_LEAST: u64 = 56;
/// Fewest details in a leaf.
const DETAILS_LEAST: u64 = 42;
/// Nodes of a tree of counts that the copy of one node adds.
const COUNTS_PER_COPY: u64 = 4;

/// The changes to one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// Virtual blocks that are mapped, mapped anew or unmapped.
    pub blocks: u64,
    /// Runs of consecutive virtual blocks that these make up.
    pub runs: u64,
    /// The device may share nodes with another one: it was snapshotted, or is a snapshot, or a
    /// metadata snapshot is held.
    pub shared: bool,
}

/// Levels of internal nodes of a tree with this many entries.
pub(super) fn height(entries: u64) -> u64 {
    let (mut nodes, mut levels) = (entries / NODE_LEAST + 1, 0);
    while nodes > 1 {
        nodes = nodes / NODE_LEAST + 1;
        levels += 1;
    }
    levels
}

/// Nodes of a tree with this many entries, and those that a split on each level adds.
fn tree_nodes(entries: u64, least: u64) -> u64 {
    let (mut nodes, mut total) = (entries / least + 1, 2);
    while nodes > 1 {
        total += nodes + 1;
        nodes = nodes / NODE_LEAST + 1;
    }
    total
}

/// The most blocks that any commit takes.
pub(super) fn overhead(txn: &Transaction, devices: u64) -> u64 {
    let (metadata, data) = (&txn.metadata, &txn.data);
    let data_pages = data.pages().len() as u64;
    let bitmaps = metadata.pages().len() as u64 + 1 + data_pages;
    let maps = tree_nodes(data_pages, INDEX_LEAST)
        + tree_nodes(data.large(), COUNTS_LEAST)
        + tree_nodes(metadata.large(), COUNTS_LEAST);
    bitmaps + maps + tree_nodes(devices, NODE_LEAST) + tree_nodes(devices, DETAILS_LEAST)
}

/// What a change adds to the overhead, in trees of this height.
pub(super) fn of(change: Change, height: u64) -> u64 {
    if change.blocks == 0 {
        return 0;
    }
    let longest = change.blocks.div_ceil(change.runs.max(1));
    let leaves = (2 * longest).min(longest / 36 + 6);
    let above = 2.min(2 * longest) + leaves / 36 + if longest > 1 { 4 } else { 0 };
    let copies = if change.shared { COUNTS_PER_COPY * (leaves + above * height) } else { 0 };
    change.runs * (leaves + above * height + 1 + copies) + 1
}

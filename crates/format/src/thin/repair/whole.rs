//! Reads a tree completely, or not at all.

use crate::thin::blocks::Blocks;
use crate::thin::leaves::each_leaf;
use crate::thin::{MetadataBlock, Value};

/// Why a tree was not read completely.
pub(super) enum End<E> {
    /// Reading has to end.
    Reading(E),
    /// The tree has a gap, or an entry that the caller does not accept.
    Unfit,
}

impl<E> From<E> for End<E> {
    fn from(error: E) -> End<E> {
        End::Reading(error)
    }
}

/// Calls `take` for each entry of a tree. Ends with false at the first gap, or if `take` returns
/// false.
pub(super) fn read_whole<V: Value, B: Blocks>(
    blocks: &mut B,
    root: MetadataBlock,
    take: &mut dyn FnMut(u64, V) -> bool,
) -> Result<bool, B::Error> {
    let read = each_leaf::<V, B, End<B::Error>>(blocks, root, &mut |_, leaf| match leaf {
        Ok(leaf) if leaf.entries::<V>().all(|(key, value)| take(key, value)) => Ok(()),
        _ => Err(End::Unfit),
    });
    match read {
        Ok(()) => Ok(true),
        Err(End::Unfit) => Ok(false),
        Err(End::Reading(error)) => Err(error),
    }
}

//! Changes of the fuzzers' seeds, for properties in ordinary tests.

use proptest::prelude::{Strategy, any};
use proptest::sample::Index;

/// Where some bytes are replaced, and by what.
pub type Mutation = (Index, Vec<u8>);

/// Fewer than `most` changes, of a few bytes each.
pub fn mutations(most: usize) -> impl Strategy<Value = Vec<Mutation>> {
    let patch = proptest::collection::vec(any::<u8>(), 1..5);
    proptest::collection::vec((any::<Index>(), patch), 0..most)
}

/// A seed with these changes, in their order; it keeps its length.
pub fn mutate(seed: &[u8], mutations: &[Mutation]) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for (place, patch) in mutations {
        let begin = place.index(bytes.len());
        let len = patch.len().min(bytes.len() - begin);
        bytes[begin..begin + len].copy_from_slice(&patch[..len]);
    }
    bytes
}

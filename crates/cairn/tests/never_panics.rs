//! The fuzzers' bodies in an ordinary test: random bytes, and seeds with some bytes changed.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use cairn_testkit::seeds;
use proptest::prelude::{ProptestConfig, Strategy, any, proptest};
use proptest::sample::Index;

#[path = "../../../fuzz/src/program.rs"]
mod cairn_bodies;
#[path = "../../../fuzz/src/handover.rs"]
mod handover_bodies;

/// A seed with some bytes changed, or cut out.
fn mutated(target: &'static str) -> impl Strategy<Value = Vec<u8>> {
    let changes = proptest::collection::vec((any::<Index>(), any::<Option<u8>>()), 0..6);
    (proptest::sample::select(seeds(target)), changes).prop_map(|(mut seed, changes)| {
        for (place, byte) in changes {
            let index = place.index(seed.len());
            match byte {
                Some(byte) => seed[index] = byte,
                None => drop(seed.remove(index)),
            }
        }
        seed
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn random_bytes_break_nothing(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        cairn_bodies::toml(&bytes);
        cairn_bodies::rpc(&bytes);
        handover_bodies::handover(&bytes);
    }

    #[test]
    fn changed_seeds_keep_the_promises(
        toml in mutated("toml"),
        rpc in mutated("rpc"),
        handover in mutated("handover"),
    ) {
        cairn_bodies::toml(&toml);
        cairn_bodies::rpc(&rpc);
        handover_bodies::handover(&handover);
    }
}

#[test]
fn whole_seeds_have_a_meaning() {
    assert!(seeds("toml").iter().all(|seed| cairn_bodies::toml(seed)));
    assert!(seeds("rpc").iter().all(|seed| cairn_bodies::rpc(seed)));
    assert!(seeds("handover").iter().all(|seed| handover_bodies::handover(seed)));
}

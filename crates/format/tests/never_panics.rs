//! The fuzzers' bodies in an ordinary test: random bytes, and golden bytes with some bytes changed.
//!
//! Decoders may refuse anything, but they may not panic, overflow or contradict themselves.

use cairn_testkit::seeds;
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_oneof, proptest};
use proptest::sample::Index;

#[path = "../../../fuzz/src/bcache.rs"]
mod bcache_bodies;
#[path = "../../../fuzz/src/format.rs"]
mod format_bodies;
#[path = "../../../fuzz/src/thin.rs"]
mod thin_bodies;

/// A change to make to a golden input.
#[derive(Debug, Clone)]
enum Mutation {
    /// Other bytes anywhere.
    Bytes(Index, Vec<u8>),
    /// Another number where the formats have numbers, at a multiple of eight bytes.
    Word(Index, u64),
}

fn mutations() -> impl Strategy<Value = Vec<Mutation>> {
    let word = prop_oneof![0u64..20, (0u64..300).prop_map(|block| block * 8), Just(u64::MAX)];
    let patch = proptest::collection::vec(any::<u8>(), 1..9);
    let mutation = prop_oneof![
        3 => (any::<Index>(), word).prop_map(|(place, word)| Mutation::Word(place, word)),
        1 => (any::<Index>(), patch).prop_map(|(place, patch)| Mutation::Bytes(place, patch)),
    ];
    proptest::collection::vec(mutation, 0..5)
}

fn mutate(seed: &[u8], mutations: &[Mutation], cut: Index) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for mutation in mutations {
        let (begin, patch) = match mutation {
            Mutation::Bytes(place, patch) => (place.index(bytes.len()), patch.clone()),
            Mutation::Word(place, word) => {
                (place.index(bytes.len()) / 8 * 8, word.to_le_bytes().to_vec())
            }
        };
        let len = patch.len().min(bytes.len() - begin);
        bytes[begin..begin + len].copy_from_slice(&patch[..len]);
    }
    // One input in eight is cut short.
    bytes.truncate(cut.index(bytes.len() * 8));
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_bytes_break_no_decoder(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        format_bodies::writecache_superblock(&bytes);
        format_bodies::writecache_metadata(&bytes);
        format_bodies::probe_windows(&bytes);
        format_bodies::snapshot_store(&bytes);
        format_bodies::qcow2_image(&bytes);
        bcache_bodies::bcache_superblock(&bytes);
        bcache_bodies::bcache_intent(&bytes);
        bcache_bodies::bcache_zones(&bytes);
        bcache_bodies::bcache_journal(&bytes);
        bcache_bodies::bcache_node(&bytes);
        bcache_bodies::bcache_priorities(&bytes);
        bcache_bodies::bcache_uuids(&bytes);
    }

    #[test]
    fn mutated_superblocks_break_no_decoder(
        seed in proptest::sample::select(seeds("writecache_superblock")),
        mutations in mutations(),
        cut in any::<Index>(),
    ) {
        format_bodies::writecache_superblock(&mutate(&seed, &mutations, cut));
    }

    #[test]
    fn mutated_metadata_breaks_no_checker(
        seed in proptest::sample::select(seeds("writecache_metadata")),
        mutations in mutations(),
        cut in any::<Index>(),
    ) {
        format_bodies::writecache_metadata(&mutate(&seed, &mutations, cut));
    }

    #[test]
    fn mutated_exception_stores_break_no_checker_and_no_repair(
        seed in proptest::sample::select(seeds("snapshot_store")),
        mutations in mutations(),
        cut in any::<Index>(),
    ) {
        format_bodies::snapshot_store(&mutate(&seed, &mutations, cut));
        // A cut removes the sizes, which are at the end.
        let (given, sizes) = seed.split_at(seed.len() - 16);
        let mutated = mutate(given, &mutations, cut);
        format_bodies::snapshot_store(&[&mutated, sizes].concat());
    }

    #[test]
    fn mutated_images_break_no_reader(
        seed in proptest::sample::select(seeds("qcow2_image")),
        mutations in mutations(),
        cut in any::<Index>(),
    ) {
        format_bodies::qcow2_image(&mutate(&seed, &mutations, cut));
    }

    #[test]
    fn mutated_blocks_break_no_decoder(
        seed in proptest::sample::select(seeds("thin_block")),
        mutations in mutations(),
        cut in any::<Index>(),
    ) {
        thin_bodies::thin_block(&mutate(&seed, &mutations, cut));
    }

    #[test]
    fn mutated_xml_breaks_no_reader(
        seed in proptest::sample::select(seeds("thin_xml")),
        mutations in mutations(),
        cut in any::<Index>(),
    ) {
        thin_bodies::thin_xml(&mutate(&seed, &mutations, cut));
    }

    #[test]
    fn mutated_volumes_break_no_probe(
        seed in proptest::sample::select(seeds("probe")),
        mutations in mutations(),
        cut in any::<Index>(),
    ) {
        format_bodies::probe_windows(&mutate(&seed, &mutations, cut));
    }

    #[test]
    fn mutated_superblocks_of_bcache_break_no_decoder(
        seed in proptest::sample::select(seeds("bcache_superblock")),
        mutations in mutations(),
        cut in any::<Index>(),
    ) {
        bcache_bodies::bcache_superblock(&mutate(&seed, &mutations, cut));
    }

    #[test]
    fn mutated_intent_maps_of_bcache_break_no_decoder(
        seed in proptest::sample::select(seeds("bcache_intent")),
        mutations in mutations(),
        cut in any::<Index>(),
    ) {
        bcache_bodies::bcache_intent(&mutate(&seed, &mutations, cut));
    }

    #[test]
    fn mutated_zone_maps_of_bcache_break_no_decoder(
        seed in proptest::sample::select(seeds("bcache_zones")),
        mutations in mutations(),
        cut in any::<Index>(),
    ) {
        bcache_bodies::bcache_zones(&mutate(&seed, &mutations, cut));
    }

    #[test]
    fn mutated_journals_of_bcache_break_no_decoder(
        seed in proptest::sample::select(seeds("bcache_journal")),
        mutations in mutations(),
        cut in any::<Index>(),
    ) {
        bcache_bodies::bcache_journal(&mutate(&seed, &mutations, cut));
    }

    #[test]
    fn mutated_nodes_of_bcache_break_no_decoder(
        seed in proptest::sample::select(seeds("bcache_node")),
        mutations in mutations(),
        cut in any::<Index>(),
    ) {
        bcache_bodies::bcache_node(&mutate(&seed, &mutations, cut));
    }

    #[test]
    fn mutated_priorities_of_bcache_break_no_decoder(
        seed in proptest::sample::select(seeds("bcache_priorities")),
        mutations in mutations(),
        cut in any::<Index>(),
    ) {
        bcache_bodies::bcache_priorities(&mutate(&seed, &mutations, cut));
    }

    #[test]
    fn mutated_volumes_of_bcache_break_no_decoder(
        seed in proptest::sample::select(seeds("bcache_uuids")),
        mutations in mutations(),
        cut in any::<Index>(),
    ) {
        bcache_bodies::bcache_uuids(&mutate(&seed, &mutations, cut));
    }
}

proptest! {
    // Each case reads a whole image many times.
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn mutated_thin_metadata_breaks_no_checker_and_no_repair(
        seed in proptest::sample::select(seeds("thin_metadata")),
        mutations in mutations(),
        cut in any::<Index>(),
    ) {
        thin_bodies::thin_metadata(&mutate(&seed, &mutations, cut));
    }
    #[test]
    fn mutated_caches_of_bcache_break_no_checker(
        seed in proptest::sample::select(seeds("bcache_set")),
        mutations in mutations(),
        cut in any::<Index>(),
    ) {
        bcache_bodies::bcache_set(&mutate(&seed, &mutations, cut));
    }
}

#[test]
fn a_key_that_begins_before_its_volume_does_not_mix_up_a_leaf() {
    let crash = include_bytes!("never_panics/bcache_node_longer_than_its_end");
    bcache_bodies::bcache_node(crash);
}

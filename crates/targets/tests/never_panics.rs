//! The fuzzer's body in an ordinary test: random words, and proper tables with some words changed.

use proptest::prelude::{ProptestConfig, Strategy, any, proptest};
use proptest::sample::Index;

#[path = "../../../fuzz/src/qcow2_volume.rs"]
mod qcow2_bodies;
#[path = "../../../fuzz/src/targets.rs"]
mod targets_bodies;
#[path = "../../../fuzz/src/thin_pool.rs"]
mod thin_pool_bodies;
#[path = "../../../fuzz/src/volumes.rs"]
mod volumes;

/// The tables among the seeds.
fn seeds() -> Vec<String> {
    let text = |seed| String::from_utf8(seed).expect("text");
    cairn_testkit::seeds("table").into_iter().map(text).collect()
}

fn words() -> impl Strategy<Value = String> {
    let odd = ["0", "1", "-1", "18446744073709551615", "4096", "a", "b", "@v", "p", "cleaner", ""];
    proptest::sample::select(odd.map(str::to_owned).to_vec())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn random_bytes_break_nothing(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        targets_bodies::table(&bytes);
    }

    #[test]
    fn tables_with_changed_words_keep_the_promises(
        seed in proptest::sample::select(seeds()),
        changes in proptest::collection::vec((any::<Index>(), words()), 0..4),
    ) {
        let mut words: Vec<String> = seed.split_whitespace().map(str::to_owned).collect();
        for (place, word) in changes {
            let index = place.index(words.len());
            words[index] = word;
        }
        targets_bodies::table(words.join(" ").as_bytes());
    }

    #[test]
    fn damaged_metadata_breaks_no_pool(
        seed in proptest::sample::select(cairn_testkit::seeds("thin_pool")),
        changes in proptest::collection::vec((any::<Index>(), any::<u8>()), 1..4),
    ) {
        let mut bytes = seed;
        for (place, byte) in changes {
            let index = place.index(bytes.len());
            bytes[index] = byte;
        }
        thin_pool_bodies::thin_pool(&bytes);
    }

    #[test]
    fn damaged_images_are_refused_or_served_as_the_check_says(
        seed in proptest::sample::select(cairn_testkit::seeds("qcow2_volume")),
        changes in proptest::collection::vec((any::<Index>(), 0..8u32), 0..3),
    ) {
        let mut bytes = seed;
        for (place, bit) in changes {
            let index = place.index(bytes.len());
            bytes[index] ^= 1 << bit;
        }
        qcow2_bodies::qcow2_volume(&bytes);
    }

    #[test]
    fn whole_images_open(seed in proptest::sample::select(cairn_testkit::seeds("qcow2_volume"))) {
        assert!(qcow2_bodies::qcow2_volume(&seed));
    }

    #[test]
    fn whole_seeds_open(seed in proptest::sample::select(cairn_testkit::seeds("thin_pool"))) {
        assert!(thin_pool_bodies::thin_pool(&seed));
    }

    #[test]
    fn whole_seeds_construct(seed in proptest::sample::select(seeds())) {
        assert!(targets_bodies::table(seed.as_bytes()), "{seed}");
    }
}

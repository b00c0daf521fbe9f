//! The fuzzer's body in an ordinary test: random words, and proper tables with some words changed.

use std::path::PathBuf;

use proptest::prelude::{ProptestConfig, Strategy, any, proptest};
use proptest::sample::Index;

#[path = "../../../fuzz/targets_bodies.rs"]
mod targets_bodies;

fn seeds() -> Vec<String> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds/table");
    let files = std::fs::read_dir(folder).expect("the seeds are checked in");
    let mut seeds: Vec<String> = files
        .map(|file| std::fs::read_to_string(file.expect("a seed").path()).expect("text"))
        .collect();
    seeds.sort();
    assert!(!seeds.is_empty());
    seeds
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
    fn whole_seeds_construct(seed in proptest::sample::select(seeds())) {
        assert!(targets_bodies::table(seed.as_bytes()), "{seed}");
    }
}

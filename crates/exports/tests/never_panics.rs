//! The fuzzers' bodies in an ordinary test: random bytes, and valid messages with some bytes
//! changed.
//!
//! A message of a client may be refused, but must not cause a panic or an overflow, or be taken for
//! another message.

use cairn_testkit::seeds;
use proptest::prelude::{ProptestConfig, Strategy, any, proptest};
use proptest::sample::Index;

#[path = "../../../fuzz/src/exports.rs"]
mod exports_bodies;

fn mutations() -> impl Strategy<Value = Vec<(Index, Vec<u8>)>> {
    let patch = proptest::collection::vec(any::<u8>(), 1..5);
    proptest::collection::vec((any::<Index>(), patch), 0..4)
}

fn mutate(seed: &[u8], mutations: &[(Index, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for (place, patch) in mutations {
        let begin = place.index(bytes.len());
        let len = patch.len().min(bytes.len() - begin);
        bytes[begin..begin + len].copy_from_slice(&patch[..len]);
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_words_break_nothing(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        exports_bodies::nbd_request(&bytes);
        exports_bodies::nbd_handshake(&bytes);
        exports_bodies::vhost_user_message(&bytes);
        exports_bodies::vhost_user_ring(&bytes);
    }

    #[test]
    fn mutated_messages_of_drivers_keep_the_promises(
        seed in proptest::sample::select(seeds("vhost_user_message")),
        mutations in mutations(),
    ) {
        exports_bodies::vhost_user_message(&mutate(&seed, &mutations));
    }

    #[test]
    fn mutated_rings_keep_the_promises(
        seed in proptest::sample::select(seeds("vhost_user_ring")),
        mutations in mutations(),
    ) {
        exports_bodies::vhost_user_ring(&mutate(&seed, &mutations));
    }

    #[test]
    fn mutated_requests_keep_the_promises(
        seed in proptest::sample::select(seeds("nbd_request")),
        mutations in mutations(),
    ) {
        exports_bodies::nbd_request(&mutate(&seed, &mutations));
    }

    #[test]
    fn mutated_negotiations_keep_the_promises(
        seed in proptest::sample::select(seeds("nbd_handshake")),
        mutations in mutations(),
    ) {
        exports_bodies::nbd_handshake(&mutate(&seed, &mutations));
    }
}

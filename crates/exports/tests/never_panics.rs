//! The fuzzers' bodies in an ordinary test: random bytes, and valid messages with some bytes
//! changed.
//!
//! A message of a client may be refused, but must not cause a panic or an overflow, or be taken for
//! another message.

use cairn_testkit::{mutate, mutations, seeds};
use proptest::prelude::{ProptestConfig, any, proptest};

#[path = "../../../fuzz/src/exports.rs"]
mod exports_bodies;

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
        mutations in mutations(4),
    ) {
        exports_bodies::vhost_user_message(&mutate(&seed, &mutations));
    }

    #[test]
    fn mutated_rings_keep_the_promises(
        seed in proptest::sample::select(seeds("vhost_user_ring")),
        mutations in mutations(4),
    ) {
        exports_bodies::vhost_user_ring(&mutate(&seed, &mutations));
    }

    #[test]
    fn mutated_requests_keep_the_promises(
        seed in proptest::sample::select(seeds("nbd_request")),
        mutations in mutations(4),
    ) {
        exports_bodies::nbd_request(&mutate(&seed, &mutations));
    }

    #[test]
    fn mutated_negotiations_keep_the_promises(
        seed in proptest::sample::select(seeds("nbd_handshake")),
        mutations in mutations(4),
    ) {
        exports_bodies::nbd_handshake(&mutate(&seed, &mutations));
    }
}

//! The fuzzers' bodies in an ordinary test: random bytes, and what good servers say with some bytes
//! changed.
//!
//! What a server says may end the connection, but must not cause a panic, end a request twice, or
//! take memory without a limit.

use cairn_testkit::{mutate, mutations, seeds};
use proptest::prelude::{ProptestConfig, any, proptest};

#[path = "../../../fuzz/src/client.rs"]
mod client_bodies;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn random_bytes_break_nothing(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        client_bodies::nbd_negotiation(&bytes);
        client_bodies::nbd_answers(&bytes);
    }

    #[test]
    fn mutated_negotiations_keep_the_promises(
        seed in proptest::sample::select(seeds("nbd_negotiation")),
        mutations in mutations(6),
    ) {
        client_bodies::nbd_negotiation(&mutate(&seed, &mutations));
    }

    #[test]
    fn mutated_answers_keep_the_promises(
        seed in proptest::sample::select(seeds("nbd_answers")),
        mutations in mutations(6),
    ) {
        client_bodies::nbd_answers(&mutate(&seed, &mutations));
    }
}

/// Each such answer would stay in memory for as long as the connection lasts (A3).
#[test]
fn a_simple_reply_does_not_end_an_answer_of_chunks() {
    let good_flush = [5, 0, 2];
    let status_request = [0, 5, 0, 15];
    let (first_chunk, simple_error) = ([5, 0, 6], [5, 0, 7, 1]);
    let commands = [good_flush.as_slice(), &status_request, &first_chunk, &simple_error].concat();
    client_bodies::nbd_answers(&[[1].as_slice(), &commands].concat());
}

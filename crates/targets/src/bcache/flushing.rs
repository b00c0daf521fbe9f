//! [`Flushing`]: which flushes of clients reach the backing device, and what comes before a key
//! becomes clean.
//!
//! [`Flushing::OURS`] is what the rules R1 and R10 ask for, and what `serve` runs. The others are
//! those of kernels, of the patches for deferred flushes, and simpler ones, for experiments that
//! compare: only [`super::LAB_KIND`] knows their words, which no server has.
//!
//! # What the others may lose
//! - `stock`: a key is clean although its data is volatile on the backing device. After a power cut
//!   only the clean copy in the cache has the data; it is gone when that is given up.
//! - `patch-v0`: a write around the cache is volatile on the backing device, and the flush after it
//!   never gets there.
//! - `patch-v1`, `patch-v2`, `one-bit`: one bit says that the backing device is to be flushed. A
//!   write around the cache sets it when it begins, a flush takes it before the device is flushed.
//!   So a second flush ends while the first one is under way, and one that overtakes a write takes
//!   the bit of that write.
//!
//! All of them journal keys, and open sets, as cairn does: what they lose is lost by their flushes.

use std::time::Duration;

use crate::spec::{Arg, Kind, Opt};

/// Which flushes of clients reach the backing device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Forwarded {
    /// Those that cover a write there that is not durable (R1).
    Owed,
    /// All.
    Always,
    /// None.
    Never,
    /// Those that find the bit set.
    OneBit,
}

/// What comes between the copies of a batch and its keys' becoming clean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Covered {
    /// A flush of the backing device (R10).
    ByFlush,
    /// Nothing: each copy has FUA.
    ByFua,
    /// Nothing, and no copy has FUA.
    Nothing,
}

/// See the module's description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flushing {
    word: &'static str,
    /// What it does, in a few words.
    about: &'static str,
    pub forwarded: Forwarded,
    pub covered: Covered,
    /// A batch is full once it has so many keys.
    pub batch_keys: usize,
    /// A batch is sealed after this time, and after the second one if it waits for its pace.
    pub batch_time: [Duration; 2],
    /// Writes around the cache are restrained while flushes come often (R16).
    pub is_restrained: bool,
}

/// The option of a table line.
pub(super) const OPTION: Opt =
    Opt::new("flushes", &[Arg::word("policy", Kind::Word(&WORDS), "")], "a policy of flushes")
        .own()
        .once();

const WORDS: [&str; Flushing::ALL.len()] = {
    let mut words = [""; Flushing::ALL.len()];
    let mut at = 0;
    while at < words.len() {
        words[at] = Flushing::ALL[at].word;
        at += 1;
    }
    words
};

impl Flushing {
    /// cairn's.
    pub const OURS: Flushing = Flushing {
        word: "ours",
        about: "a client's flush reaches the backing device if something there is volatile; a \
                batch is flushed before its keys are clean",
        forwarded: Forwarded::Owed,
        covered: Covered::ByFlush,
        batch_keys: 20_000,
        batch_time: [Duration::from_secs(2), Duration::from_secs(10)],
        is_restrained: true,
    };

    /// Flushes of clients as a kernel passes them down.
    const KERNELS: Flushing =
        Flushing { forwarded: Forwarded::Always, is_restrained: false, ..Flushing::OURS };

    /// The patches of 2025.
    const ONE_BIT: Flushing = Flushing { forwarded: Forwarded::OneBit, ..Flushing::KERNELS };

    const ALL: [Flushing; 10] = [
        Flushing::OURS,
        Flushing {
            word: "forwarded",
            about: "each flush of a client reaches the backing device; batches as ours",
            ..Flushing::KERNELS
        },
        Flushing {
            word: "stock",
            about: "as forwarded, and keys become clean without a flush: the kernel's",
            covered: Covered::Nothing,
            ..Flushing::KERNELS
        },
        Flushing {
            word: "fua",
            about: "as ours, but each copy to the backing device has FUA",
            covered: Covered::ByFua,
            ..Flushing::OURS
        },
        Flushing {
            word: "batch-500",
            about: "as ours, but a batch has 500 keys",
            batch_keys: 500,
            ..Flushing::OURS
        },
        Flushing {
            word: "batch-20000",
            about: "as ours, but a batch has 20 000 keys or takes 30 s",
            batch_time: [Duration::from_secs(30); 2],
            ..Flushing::OURS
        },
        Flushing {
            word: "patch-v0",
            about: "no flush of a client reaches the backing device; copies have FUA",
            forwarded: Forwarded::Never,
            covered: Covered::ByFua,
            ..Flushing::KERNELS
        },
        Flushing {
            word: "patch-v1",
            about: "as one-bit, but copies have FUA",
            covered: Covered::ByFua,
            ..Flushing::ONE_BIT
        },
        Flushing {
            word: "patch-v2",
            about: "as one-bit, but a batch has 500 keys",
            batch_keys: 500,
            ..Flushing::ONE_BIT
        },
        Flushing {
            word: "one-bit",
            about: "a flush of a client reaches the backing device if it finds a bit set, which it \
                    clears; batches as ours",
            ..Flushing::ONE_BIT
        },
    ];

    /// The policy of a word.
    pub fn of_word(word: &str) -> Option<Flushing> {
        Flushing::ALL.into_iter().find(|policy| policy.word == word)
    }
}

/// The words, with what each does, in a few words.
pub fn flush_policies() -> impl Iterator<Item = (&'static str, &'static str)> {
    Flushing::ALL.iter().map(|policy| (policy.word, policy.about))
}

#[cfg(test)]
mod tests {
    use super::{Covered, Flushing, Forwarded, WORDS};

    #[test]
    fn words_name_policies_and_only_ours_is_without_one() {
        for word in WORDS {
            assert_eq!(Flushing::of_word(word).map(|it| it.word), Some(word));
        }
        assert_eq!(Flushing::of_word("sometimes"), None);
        let ours = Flushing::OURS;
        assert_eq!((ours.forwarded, ours.covered), (Forwarded::Owed, Covered::ByFlush));
        assert!(ours.is_restrained);
    }
}

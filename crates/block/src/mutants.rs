//! Mutation points: each flush, write with FUA, comparison of failure counts and wait that an order
//! depends on has a name, and can be removed. A test or the crash campaign must then fail, or
//! `scripts/mutants.equivalent` says why nothing changes without it. `scripts/mutate` removes them
//! one at a time.
//!
//! Names are `WHOSE: WHAT`, verbatim in the sources, where the script finds them. They exist only
//! in builds with the feature `canary`, which no released program has.

#[cfg(feature = "canary")]
mod planted {
    use std::cell::Cell;
    use std::sync::OnceLock;

    thread_local! {
        static SKIPPED: Cell<Option<&'static str>> = const { Cell::new(None) };
    }

    /// Takes out what has this name, for this thread; or nothing.
    pub fn skip(name: Option<&'static str>) {
        SKIPPED.set(name);
    }

    /// True if what has this name is taken out: by [`skip`], or by the variable `CAIRN_MUTANT`.
    pub fn skips(name: &str) -> bool {
        static OF_PROCESS: OnceLock<Option<String>> = OnceLock::new();
        let of_process = OF_PROCESS.get_or_init(|| std::env::var("CAIRN_MUTANT").ok());
        SKIPPED.get() == Some(name) || of_process.as_deref() == Some(name)
    }
}

#[cfg(feature = "canary")]
pub use planted::{skip, skips};

use crate::op::Flags;

/// True if what has this name is taken out.
#[cfg(not(feature = "canary"))]
pub const fn skips(_name: &str) -> bool {
    false
}

/// FUA, unless it is taken out.
pub fn fua(name: &str) -> Flags {
    if skips(name) { Flags::empty() } else { Flags::FUA }
}

/// True if a failure count is what it was, or if nobody compares it.
pub fn same(name: &str, before: u64, now: u64) -> bool {
    before == now || skips(name)
}

/// A step's result; or `done`, if the step is taken out. It must be one that only begins when it
/// is waited for.
///
/// # Errors
/// The step's.
pub async fn step<T, E>(
    name: &str,
    done: T,
    step: impl Future<Output = Result<T, E>>,
) -> Result<T, E> {
    if skips(name) { Ok(done) } else { step.await }
}

//! Known ordering bugs, planted on demand: a test or the crash campaign must catch each of them.
//!
//! The bugs of a target are the enum `Bug` of its module `canary`. They are planted in builds for
//! tests only, which no released program has.

/// Has `plant` plant a `Bug` of this module on this thread, and `planted` ask for one. In other
/// builds than the one that is named nothing is ever planted.
macro_rules! plants_bugs {
    ($vis:vis, $($build:tt)+) => {
        #[cfg($($build)+)]
        thread_local! {
            static PLANTED: std::cell::Cell<Option<Bug>> = const { std::cell::Cell::new(None) };
        }

        /// Plants a bug in all of this kind on this thread, or none.
        #[cfg($($build)+)]
        $vis fn plant(bug: Option<Bug>) {
            PLANTED.set(bug);
        }

        #[cfg($($build)+)]
        pub(super) fn planted(bug: Bug) -> bool {
            PLANTED.get() == Some(bug)
        }

        #[cfg(not($($build)+))]
        pub(super) const fn planted(_: Bug) -> bool {
            false
        }
    };
}

pub(crate) use plants_bugs;

//! Verbs under way that wait for the requests of a volume, and do not hold the turn of other verbs.
//!
//! Rules, so that no verb waits for a volume that waits for a verb (the turn is
//! `verbs::Verbs::change`):
//! U1. An entry is made in turn. That of a swap of tables ends in the turn in which the swap ends;
//!     that of a suspend ends at any time.
//! U2. A verb on a volume with an entry is refused.
//! U3. A verb that may wait in its turn for the requests of a volume is refused while that volume,
//!     or one beneath it, is suspended or has an entry.
//! U4. A volume beneath one whose tables are being swapped is not suspended: the swap starts a
//!     table in its turn.

use cairn_block::ConfigKind;
use cairn_outcome::failure::{Outcome, refused};
use parking_lot::Mutex;

/// What a verb does to its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// It is suspended.
    Suspend,
    /// A loaded table is made live.
    Resume,
    /// A table is replaced.
    Replace,
}

impl Doing {
    fn verb(self) -> &'static str {
        match self {
            Doing::Suspend => "suspend",
            Doing::Resume => "resume",
            Doing::Replace => "replace",
        }
    }
}

/// All of them.
#[derive(Default)]
pub struct UnderWay(Mutex<Vec<(String, Doing)>>);

/// One, until it is dropped, if only by a panic.
pub struct Entry<'a> {
    all: &'a UnderWay,
    volume: &'a str,
}

impl UnderWay {
    /// Enters a verb.
    pub fn begin<'a>(&'a self, volume: &'a str, doing: Doing) -> Entry<'a> {
        self.0.lock().push((volume.to_owned(), doing));
        Entry { all: self, volume }
    }

    /// What is under way on a volume.
    pub fn on(&self, volume: &str) -> Option<Doing> {
        self.0.lock().iter().find(|(name, _)| name == volume).map(|(_, doing)| *doing)
    }

    /// True if nothing is.
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Refuses a verb on a volume that has an entry (U2).
    ///
    /// # Errors
    /// It has one.
    pub fn refuse(&self, volume: &str) -> Outcome<()> {
        let Some(doing) = self.on(volume) else { return Ok(()) };
        let found = format!("a {} under way", doing.verb());
        Err(refused(ConfigKind::Busy, volume, "state", found, "none"))
    }

    /// The volumes whose tables are being swapped (U4).
    pub fn swaps(&self) -> Vec<String> {
        let all = self.0.lock();
        let swaps = all.iter().filter(|(_, doing)| *doing != Doing::Suspend);
        swaps.map(|(name, _)| name.clone()).collect()
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        let mut all = self.all.0.lock();
        let own = all.iter().position(|(name, _)| name == self.volume);
        all.swap_remove(own.expect("it was entered at the beginning"));
    }
}

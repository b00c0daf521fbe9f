//! The register of verbs that wait for the requests of a volume without holding a turn.
//!
//! The rules keep a verb from waiting for a volume that waits for a verb (a turn begins in
//! `verbs::Verbs::change`):
//! U1. An entry is made in a turn. The entry of a swap of tables ends in the turn in which the swap
//!     ends; the entry of a suspend ends at any time, but in the turn that undoes it if it was
//!     called off too late.
//! U2. A verb on a volume with an entry is refused.
//! U3. A verb that may wait in its turn for the requests of a volume is refused while that volume,
//!     or one beneath it, is suspended or has an entry.
//! U4. A volume beneath one whose tables are being swapped is not suspended: the swap starts a
//!     table in its turn.
//! U5. A `resume` calls off a suspend or a `cache detach` under way and waits, without a turn,
//! until its entry has ended. The entry of a detach may be that of the volume beneath snapshots.

use std::sync::Arc;

use cairn_block::{CallOff, ConfigError, ConfigKind};
use cairn_outcome::failure::Outcome;
use parking_lot::Mutex;

use crate::names::real_of;

/// What a verb does to its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// It is suspended.
    Suspend,
    /// A loaded table is made live.
    Resume,
    /// A table is replaced.
    Replace,
    /// A cache is put in front of a device.
    Attach,
    /// A cache is drained, and taken away.
    Detach,
    /// The options of a cache's line change.
    Set,
}

impl Doing {
    /// Its word on the command line.
    pub fn verb(self) -> &'static str {
        match self {
            Doing::Suspend => "suspend",
            Doing::Resume => "resume",
            Doing::Replace => "replace",
            Doing::Attach => "cache attach",
            Doing::Detach => "cache detach",
            Doing::Set => "cache set",
        }
    }
}

/// A verb under way.
struct Verb {
    volume: String,
    doing: Doing,
    call_off: Arc<CallOff>,
}

/// The register.
#[derive(Default)]
pub struct UnderWay(Mutex<Vec<Verb>>);

/// An entry. It ends when this is dropped, also by a panic.
pub struct Entry<'a> {
    all: &'a UnderWay,
    call_off: Arc<CallOff>,
}

impl Entry<'_> {
    /// Calls off the suspend or detach of this entry.
    pub fn call_off(&self) -> &Arc<CallOff> {
        &self.call_off
    }
}

impl UnderWay {
    /// Enters a verb.
    pub fn begin(&self, volume: &str, doing: Doing) -> Entry<'_> {
        let (volume, call_off) = (volume.to_owned(), Arc::<CallOff>::default());
        self.0.lock().push(Verb { volume, doing, call_off: call_off.clone() });
        Entry { all: self, call_off }
    }

    /// Calls off the suspend or detach of a volume (U5). False if none is under way.
    pub fn call_off(&self, volume: &str) -> bool {
        let all = self.0.lock();
        let real = real_of(volume);
        let is_it = |verb: &&Verb| match verb.doing {
            Doing::Suspend => verb.volume == volume,
            Doing::Detach => [volume, &real].contains(&verb.volume.as_str()),
            Doing::Resume | Doing::Replace | Doing::Attach | Doing::Set => false,
        };
        let verb = all.iter().find(is_it);
        verb.inspect(|verb| verb.call_off.call()).is_some()
    }

    /// The verb under way on a volume.
    pub fn on(&self, volume: &str) -> Option<Doing> {
        self.0.lock().iter().find(|verb| verb.volume == volume).map(|verb| verb.doing)
    }

    /// True if no verb is under way.
    pub fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Refuses a verb on a volume that has an entry (U2).
    ///
    /// # Errors
    /// The volume has an entry.
    pub fn refuse(&self, volume: &str) -> Outcome<()> {
        let Some(doing) = self.on(volume) else { return Ok(()) };
        let verb = doing.verb();
        let way_on = match doing {
            Doing::Suspend => format!("`cairn resume {volume}` ends it"),
            Doing::Detach => format!("wait for it, or `cairn resume {volume}` calls it off"),
            Doing::Resume | Doing::Replace | Doing::Attach | Doing::Set => {
                format!("wait for it, or interrupt that {verb}")
            }
        };
        let detail = format!("a {verb} is under way; {way_on}");
        Err(ConfigError::new(ConfigKind::Busy, volume, detail))
    }

    /// The volumes whose tables are being swapped (U4).
    pub fn swaps(&self) -> Vec<String> {
        let all = self.0.lock();
        let swaps = all.iter().filter(|verb| verb.doing != Doing::Suspend);
        swaps.map(|verb| verb.volume.clone()).collect()
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        let mut all = self.all.0.lock();
        let own = all.iter().position(|verb| Arc::ptr_eq(&verb.call_off, &self.call_off));
        all.swap_remove(own.expect("it was entered at the beginning"));
    }
}

//! `cache flush`: the caches of a volume write back what is dirty, while clients are served.

use cairn_outcome::failure::{Outcome, wrong};

use super::{CACHE_LINE, cache_lines};
use crate::control::server::Caller;
use crate::verbs::Verbs;
use crate::verbs::verb::{Done, declare};

declare! {
    /// `cache flush`
    CacheFlush = "cache_flush" -> Done {
        /// The volume
        name: String,
    }
    |verb, verbs, caller| verbs.cache_flush(&verb.name, caller)
}

impl Verbs {
    /// Waits until what is dirty now is written back. If the caller hangs up, the caches write back
    /// nevertheless. Takes no turn, as the message `flush` takes none.
    ///
    /// # Errors
    /// No line has a cache that can be drained, the volume is suspended, or a device failed: what
    /// could not be written back stays dirty.
    pub(in crate::verbs) fn cache_flush(&self, name: &str, caller: &dyn Caller) -> Outcome<()> {
        let volume = self.beneath_snapshots(name)?;
        let lines = cache_lines(&volume);
        if lines.is_empty() {
            return Err(wrong(name, "table", "no cache", CACHE_LINE));
        }
        if !lines.iter().any(|line| line.target.drains()) {
            let found = "a volume without both a backing device and a cache";
            return Err(wrong(name, "table", found, "a cache in front of a device"));
        }
        self.drain_caches(volume.volume(), None, caller)
    }
}

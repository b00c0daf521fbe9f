//! `cairn cache`: the caches of served volumes.
//!
//! A cache is a table line with an argument `cache`: a line of `writecache` or `bcache`. The verbs
//! take the name of the volume that clients use. If that volume has snapshots, its caches are in
//! the table of the volume beneath them (`V@real`), and the verbs act there.
//!
//! - `list` and `get` only read.
//! - `flush` has the caches write back. It changes no table and takes no turn.
//! - `set` sends messages, or replaces the table by one with other options.
//! - `volume` makes a volume that lies in a cache of bcache alone, and serves it.
//! - `detach` and `attach` replace the table by one without the cache, or with one.
//!
//! The verbs that replace a table have the checks, the order and the crash argument of
//! `volume::swap`: a kill leaves a state file from which the next start serves the old table or the
//! new one, with the same content.

pub mod attach;
pub mod attributes;
pub mod detach;
pub mod flush;
pub mod list;
mod uncached;
pub mod volume;

use std::sync::Arc;

use cairn_block::{MappedDevice, Target};
use cairn_outcome::failure::{Outcome, wrong};
use cairn_targets::spec::{NO_DEVICE, words_of};

pub use attach::CacheAttach;
pub use attributes::{CacheGet, CacheSet};
pub use detach::CacheDetach;
pub use flush::CacheFlush;
pub use list::CacheList;
pub use volume::CacheVolume;

use super::Verbs;
use crate::names::{is_hidden, parent_of, real_of};

/// What the refusal of a volume without a cache expects.
const CACHE_LINE: &str = "a line of writecache or bcache";

/// A line of a live table with a cache.
struct CacheLine {
    /// Its first sector.
    start: u64,
    /// Its length.
    sectors: u64,
    /// The kind of target.
    kind: String,
    /// The slow device as the table names it, or `-`.
    origin: String,
    /// The cache device as the table names it, or `-`.
    cache: String,
    target: Arc<dyn Target>,
}

impl CacheLine {
    /// False if the cache device is absent.
    fn has_cache(&self) -> bool {
        self.cache != NO_DEVICE
    }

    /// True if the target was given a cache, which failed: the line prints as one without it.
    fn went_on_alone(&self) -> bool {
        !self.has_cache() && self.target.drains()
    }
}

/// The lines of a volume's live table with a cache, in order.
fn cache_lines(volume: &MappedDevice) -> Vec<CacheLine> {
    let table = volume.live_table();
    let lines = table.iter().flat_map(|table| table.lines());
    let cached = lines.filter_map(|line| {
        let printed = line.to_table_line();
        let (_, words) = words_of(&printed)?;
        let cache = words.argument("cache")?.to_owned();
        let origin = words.argument("origin").or_else(|| words.argument("backing"));
        Some(CacheLine {
            start: line.start.0,
            sectors: line.len.0,
            kind: line.name.clone(),
            origin: origin.unwrap_or(NO_DEVICE).to_owned(),
            cache,
            target: line.target.clone(),
        })
    });
    cached.collect()
}

/// The volume that a user calls `name` in these verbs.
fn shown_name(name: &str) -> &str {
    parent_of(name).filter(|_| is_hidden(name)).unwrap_or(name)
}

impl Verbs {
    /// The volume with the table of `name`: beneath its snapshots, if there are any.
    ///
    /// # Errors
    /// There is no such volume.
    fn beneath_snapshots(&self, name: &str) -> Outcome<Arc<MappedDevice>> {
        let real = self.world.volume(&real_of(name));
        real.or_else(|_| self.world.volume(name))
    }

    /// The line with a cache of a volume: the only one, or that which begins at `sector`.
    ///
    /// # Errors
    /// There is none, or several and no sector.
    fn cache_line(&self, name: &str, sector: Option<u64>) -> Outcome<CacheLine> {
        let volume = self.beneath_snapshots(name)?;
        let mut lines = cache_lines(&volume);
        let starts = lines.iter().map(|line| line.start.to_string()).collect::<Vec<_>>().join(", ");
        if lines.is_empty() {
            return Err(wrong(name, "table", "no cache", CACHE_LINE));
        }
        let position = match sector {
            Some(sector) => lines.iter().position(|line| line.start == sector),
            None => Some(0).filter(|_| lines.len() == 1),
        };
        position.map(|at| lines.swap_remove(at)).ok_or_else(|| {
            let found = match sector {
                Some(sector) => sector.to_string(),
                None => format!("none with {} caches", lines.len()),
            };
            wrong(name, "--sector", found, format!("the first sector of a cache: {starts}"))
        })
    }
}

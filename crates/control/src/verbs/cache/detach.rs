//! `cache detach`: the caches of a volume write back, and its table becomes one without them.
//!
//! The verb is a `replace --flush` by the table with `linear` in the place of each cache, at the
//! sector of the slow device where the line's content begins. It has the checks, the order and the
//! crash argument of `replace`; the state file has no record of a detach that is under way, so that
//! the next start after a kill serves the cache.
//!
//! Once the verb has its turn, its caller may hang up: the detach goes on. It ends without a change
//! if its time passes, if a `resume` calls it off, or if the server stops.

use std::time::{Duration, Instant};

use cairn_block::{ConfigKind, MappedDevice, Sector, SectorRange};
use cairn_outcome::failure::{Outcome, refused, wrong};
use serde::{Deserialize, Serialize};

use super::{CACHE_LINE, CacheLine, cache_lines};
use crate::control::server::Caller;
use crate::reach::Named;
use crate::under_way::Doing;
use crate::verbs::verb::declare;
use crate::verbs::volume::VolumeReplace;
use crate::verbs::{Verbs, is_interruption};

declare! {
    /// `cache detach`
    CacheDetach = "cache_detach" -> Detached {
        /// The volume
        name: String,
        /// Give up after this time, with the table unchanged
        #[arg(skip)]
        timeout_ms: Option<u64>,
    }
    |verb, verbs, caller| verbs.cache_detach(&verb, caller)
}

/// How a detach ended.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Detached {
    /// False if the time passed first: the table is unchanged.
    pub detached: bool,
    /// Notes for a person.
    pub notes: Vec<String>,
}

/// A caller that is gone at a given time. A client that goes earlier does not end the verb.
struct Until(Option<Instant>);

impl Until {
    fn is_over(&self) -> bool {
        self.0.is_some_and(|at| Instant::now() >= at)
    }
}

impl Caller for Until {
    fn is_gone(&self) -> bool {
        self.is_over()
    }
}

/// The client, until a moment.
struct ClientUntil<'a>(&'a dyn Caller, &'a Until);

impl Caller for ClientUntil<'_> {
    fn is_gone(&self) -> bool {
        self.1.is_over() || self.0.is_gone()
    }
}

impl Verbs {
    /// # Errors
    /// The volume serves on with its old table.
    pub(in crate::verbs) fn cache_detach(
        &self,
        params: &CacheDetach,
        caller: &dyn Caller,
    ) -> Outcome<Detached> {
        let limit = params.timeout_ms.map(Duration::from_millis);
        let until = Until(limit.and_then(|limit| Instant::now().checked_add(limit)));
        match self.detach_until(&params.name, caller, &until) {
            Ok(notes) => Ok(Detached { detached: true, notes }),
            Err(error) if until.is_over() && is_interruption(&error) => {
                let name = &params.name;
                tracing::info!("{name}: cache detach: the time passed; the table is unchanged");
                Ok(Detached { detached: false, notes: Vec::new() })
            }
            Err(error) => Err(error),
        }
    }

    fn detach_until(&self, name: &str, caller: &dyn Caller, until: &Until) -> Outcome<Vec<String>> {
        let beneath = self.beneath_snapshots(name)?.volume().to_owned();
        let waiting = ClientUntil(caller, until);
        let changes = self.change_table(&Named::volume(&beneath), "cache detach", &waiting)?;
        let volume = self.ready(&beneath)?;
        let table = without_caches(name, &volume)?;
        let params =
            VolumeReplace { name: beneath, table, flush: true, ..VolumeReplace::default() };
        self.swap_in_turn(changes, Doing::Detach, &params, until)
    }
}

/// The live table of a volume with `linear` in the place of each cache.
fn without_caches(name: &str, volume: &MappedDevice) -> Outcome<String> {
    let caches = cache_lines(volume);
    if caches.is_empty() {
        return Err(wrong(name, "table", "no cache", CACHE_LINE));
    }
    let mut text = String::new();
    for line in volume.live_table().iter().flat_map(|table| table.lines()) {
        let line = match caches.iter().find(|cache| cache.start == line.start.0) {
            Some(cache) => bare_line(name, cache)?,
            None => line.to_table_line().to_string(),
        };
        text.push_str(&line);
        text.push('\n');
    }
    Ok(text)
}

/// The line of the slow device alone.
fn bare_line(name: &str, line: &CacheLine) -> Outcome<String> {
    let CacheLine { start, sectors, kind, origin, target, .. } = line;
    let range = SectorRange::new(Sector(0), cairn_block::SectorCount(*sectors));
    match target.shows_of_origin(range).filter(|_| target.drains()) {
        Some((_, shown)) => Ok(format!("{start} {sectors} linear {origin} {}", shown.start)),
        None => {
            let found = format!("a line of {kind} without both a backing device and a cache");
            Err(refused(ConfigKind::Argument, name, "table", found, "a cache to detach"))
        }
    }
}

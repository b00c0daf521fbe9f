//! `cache list`: the caches of served volumes with their states.

use cairn_block::Value;
use cairn_outcome::failure::Outcome;
use serde::{Deserialize, Serialize};

use super::{CacheLine, cache_lines, shown_name};
use crate::under_way::Doing;
use crate::verbs::Verbs;
use crate::verbs::verb::declare;

/// The state of a cache that a `cache detach` is about to remove.
pub const DETACHING: &str = "detaching";

declare! {
    /// `cache list`
    CacheList = "cache_list" -> Vec<CacheInfo> {
        /// The volume (default: all)
        name: Option<String>,
    }
    |verb, verbs, _| verbs.cache_list(verb.name.as_deref())
}

/// A cache of a served volume.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheInfo {
    /// The volume.
    pub name: String,
    /// The first sector of its line.
    pub start: u64,
    /// The length of its line in sectors.
    pub sectors: u64,
    /// The kind of target.
    pub target: String,
    /// The cache device as the table names it, or `-`.
    pub cache: String,
    /// The slow device as the table names it, or `-`.
    pub origin: String,
    /// Where writes go.
    pub mode: String,
    /// `clean`, `dirty`, or another word of the target.
    pub state: String,
    /// What only the cache has.
    pub dirty_bytes: u64,
    /// How much of the cache cannot be reused without a writeback.
    pub used_percent: Option<u64>,
}

impl Verbs {
    pub(in crate::verbs) fn cache_list(&self, name: Option<&str>) -> Outcome<Vec<CacheInfo>> {
        let volumes = match name {
            Some(name) => vec![self.beneath_snapshots(name)?],
            None => self.world.volumes(),
        };
        let mut infos = Vec::new();
        for volume in volumes {
            let is_detaching = self.world.under_way().on(volume.volume()) == Some(Doing::Detach);
            let shown = shown_name(volume.volume());
            for line in cache_lines(&volume) {
                let info = info(shown, line);
                let state = if is_detaching { DETACHING.to_owned() } else { info.state };
                infos.push(CacheInfo { state, ..info });
            }
        }
        Ok(infos)
    }
}

fn info(name: &str, line: CacheLine) -> CacheInfo {
    let CacheLine { start, sectors, kind, origin, cache, target: live } = line;
    let (report, attributes) = (live.report(), live.attributes());
    let attribute = |name: &str| attributes.iter().find(|it| it.name == name).map(|it| &it.value);
    let mode = match (attribute("cache_mode"), attribute("cleaner")) {
        (Some(mode), _) => mode.to_string(),
        (None, Some(Value::State("on"))) => "cleaner".to_owned(),
        (None, _) => "writeback".to_owned(),
    };
    let dirty_bytes = live.dirty().map_or(0, |dirty| dirty.sectors.to_bytes());
    let is_failed = report.number("error") == Some(1)
        || attribute("io_disable").is_some_and(|value| *value == Value::Gauge(1));
    let state = match (is_failed, report.value("state"), dirty_bytes) {
        (true, ..) => "failed".to_owned(),
        (_, Some(state), _) => state.to_string(),
        (_, None, 0) => "clean".to_owned(),
        (_, None, _) => "dirty".to_owned(),
    };
    let used_percent = match (report.number("blocks"), report.number("free_blocks")) {
        (Some(blocks), Some(free)) => ((blocks - free.min(blocks)) * 100).checked_div(blocks),
        _ => report.number("cache_available_percent").map(|free| 100 - free.min(100)),
    };
    let (name, target) = (name.to_owned(), kind);
    CacheInfo {
        name,
        start,
        sectors,
        target,
        cache,
        origin,
        mode,
        state,
        dirty_bytes,
        used_percent,
    }
}

//! The dirty marker: says, on the engine that keeps a disk, that a cache has data which the disk
//! lacks.
//!
//! A cache that writes back does so in an order of its own. Until all of it is written back, the
//! disk beneath is not what any client has written at any time. Another host that can reach the
//! disk does not see the cache. So the cache has a marker put beside such a disk before the first
//! block becomes dirty, and every other user of the disk is refused while it stands.
//!
//! A marker has a random generation, of which the server of the cache keeps a note
//! ([`MarkerBook`]). A marker of another generation is that of another cache, or of the same one at
//! another time; then another host may have used the disk.
//!
//! Here are the text of a marker and the notes. A disk says where its marker is
//! ([`crate::Disk::marker_place`]), a table refuses the disks of others when it starts, and what a
//! cache does is in `origin_marker` of the crate `targets`.

use std::time::Duration;

use crate::error::{ConfigError, ConfigKind};
use crate::loss_log::{Receipt, until_kept};

/// The first word of the text: another one is of a later program.
const VERSION: &str = "1";
/// In place of the UUID of a format that has none.
pub const NO_UUID: &str = "-";

/// Says which cache has data that a disk lacks. No field has white space in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirtyMarker {
    /// Random: no two markers have the same one.
    pub generation: String,
    /// The kind of target.
    pub kind: String,
    /// The cache device, as the table line names it.
    pub cache: String,
    /// The UUID of a cache set; `-` if the format has none.
    pub uuid: String,
    /// The host of the server.
    pub host: String,
    /// When it was put there, since 1970.
    pub since: Duration,
}

impl DirtyMarker {
    /// The text that is kept.
    pub fn encode(&self) -> String {
        let DirtyMarker { generation, kind, cache, uuid, host, since } = self;
        let seconds = since.as_secs();
        format!("{VERSION} {generation} {kind} {cache} {uuid} {host} {seconds}")
    }

    /// The marker that a text is; none if it is that of a later program, or damaged.
    pub fn decode(text: &str) -> Option<DirtyMarker> {
        let words: Vec<&str> = text.split(' ').collect();
        let [VERSION, generation, kind, cache, uuid, host, since] = words[..] else { return None };
        let since = Duration::from_secs(since.parse().ok()?);
        let [generation, kind, cache, uuid, host] =
            [generation, kind, cache, uuid, host].map(str::to_owned);
        Some(DirtyMarker { generation, kind, cache, uuid, host, since })
    }

    /// The marker beside a disk of this name.
    ///
    /// # Errors
    /// It is none that this program knows.
    pub fn of_text(disk: &str, text: &str) -> Result<DirtyMarker, ConfigError> {
        DirtyMarker::decode(text).ok_or_else(|| {
            let detail = format!("dirty marker: found '{text}', expected one of version {VERSION}");
            ConfigError::new(ConfigKind::Damaged, disk, detail)
        })
    }

    /// The marker of this generation, if that is what a text is.
    ///
    /// # Errors
    /// It is another one, or there is none.
    pub fn named(
        disk: &str,
        text: Option<&str>,
        generation: &str,
    ) -> Result<DirtyMarker, ConfigError> {
        match text.and_then(DirtyMarker::decode) {
            Some(marker) if marker.generation == generation => Ok(marker),
            other => {
                let found = other.as_ref().map(|it| it.generation.as_str()).or(text);
                let found = format!("'{}'", found.unwrap_or("none"));
                Err(ConfigError::argument(disk, "dirty marker", found, generation))
            }
        }
    }

    /// The refusal of a disk that is to be used without a cache, at this time since 1970.
    pub fn refusal_alone(&self, disk: &str, now: Duration) -> ConfigError {
        self.refusal(disk, now, "none: its newest data is in that cache")
    }

    /// The refusal of a disk beside which it stands, at this time since 1970.
    pub fn refusal(&self, disk: &str, now: Duration, expected: &str) -> ConfigError {
        let (found, generation) = (self.describe(now), &self.generation);
        let detail = format!(
            "dirty marker: found {found}, expected {expected}; if that data is given up: cairn \
             unmark '{disk}' {generation}"
        );
        ConfigError::new(ConfigKind::Busy, disk, detail)
    }

    /// For a person, at this time since 1970.
    pub fn describe(&self, now: Duration) -> String {
        let DirtyMarker { generation, kind, cache, uuid, host, since } = self;
        let set = if uuid == "-" { String::new() } else { format!(" (set {uuid})") };
        let age = now.saturating_sub(*since).as_secs();
        format!("{generation} of {kind} {cache}{set} on host {host}, {age} s old")
    }

    /// True if both are of one cache, as far as the format tells: by the UUID of its set, or else
    /// by its device.
    pub fn is_of_cache_of(&self, other: &DirtyMarker) -> bool {
        let is_same = match self.uuid.as_str() {
            NO_UUID => self.cache == other.cache,
            _ => true,
        };
        is_same && self.kind == other.kind && self.uuid == other.uuid
    }
}

/// What a server knows of the markers of its caches.
pub trait MarkerBook: Send + Sync {
    /// A marker of a new generation, of a cache of this host.
    fn new_marker(&self, kind: &str, cache: &str, uuid: &str) -> DirtyMarker;

    /// The generations that are noted for a disk: two, if a marker was about to replace another.
    fn noted(&self, disk: &str) -> Vec<String>;

    /// True if notes outlive the server.
    fn is_lasting(&self) -> bool;

    /// Replaces what is noted for a disk. Called on a reactor: must not wait. The receipt is given
    /// from any thread, when the note is durable.
    fn note(&self, disk: &str, generations: &[String], receipt: Receipt);

    /// True if the user has named what was found beside a disk, and said that its data and that of
    /// the cache belong together: a generation, or that there is none.
    fn is_adopted(&self, disk: &str, found: &str) -> bool;
}

/// Replaces what is noted for a disk, and waits. True if the note is durable.
pub async fn note_marker(book: &dyn MarkerBook, disk: &str, generations: &[String]) -> bool {
    until_kept(|receipt| book.note(disk, generations, receipt)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    fn marker() -> DirtyMarker {
        DirtyMarker {
            generation: "5f".to_owned(),
            kind: "writecache".to_owned(),
            cache: "/dev/nvme0n1".to_owned(),
            uuid: "-".to_owned(),
            host: "a".to_owned(),
            since: Duration::from_secs(7),
        }
    }

    #[test]
    fn a_marker_is_read_as_it_was_written() {
        let text = marker().encode();
        assert_eq!(text, "1 5f writecache /dev/nvme0n1 - a 7");
        assert_eq!(DirtyMarker::decode(&text), Some(marker()));
    }

    #[test]
    fn what_is_no_marker_of_this_version_is_none() {
        for wrong in ["", "2 5f writecache c - a 7", "1 5f writecache c - a", "1 a b c d e f g"] {
            assert_eq!(DirtyMarker::decode(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_cache_is_known_by_the_uuid_of_its_set_or_by_its_device() {
        let is_same = |one: DirtyMarker| one.is_of_cache_of(&marker());
        assert!(is_same(DirtyMarker { generation: "60".to_owned(), ..marker() }));
        assert!(!is_same(DirtyMarker { cache: "/dev/sda".to_owned(), ..marker() }));
        assert!(!is_same(DirtyMarker { kind: "bcache".to_owned(), ..marker() }));
        let set = |uuid: &str, cache: &str| DirtyMarker {
            kind: "bcache".to_owned(),
            uuid: uuid.to_owned(),
            cache: cache.to_owned(),
            ..marker()
        };
        assert!(set("a", "/dev/sda").is_of_cache_of(&set("a", "/dev/sdb")));
        assert!(!set("a", "/dev/sda").is_of_cache_of(&set("b", "/dev/sda")));
    }
}

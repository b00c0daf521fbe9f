//! The records of caches that may have data that their origins lack.
//!
//! Nothing in the format of a cache ties it to its origin. A table that uses the origin without the
//! cache serves old data, and a later writeback overwrites what clients wrote through that table.
//! While a cache is live, claims and the rules for dirty data keep other tables away
//! (`verbs::volume::swap`). These records do so when it is not: after `remove`, a stop, a kill, or
//! with a changed configuration.
//!
//! C1. Before a table with a cache serves a request, the file has a record of the cache, `in-use`.
//! C2. `remove`, a swap of tables and a stop change the record of a cache that they leave: to
//!     `left` with its dirty bytes, or they drop it if the cache is clean. If writes were lost,
//!     it stays `in-use`.
//! C3. `--discard-dirty` and `state forget` change it to `given-up` before a table that uses the
//!     origin without the cache is live.
//! C4. `in-use` and `left` both mean that the cache may be dirty. When a table would use the origin
//!     without the cache, the server reads the cache device to find out. The record is dropped if
//!     the device is clean or has no cache. So tools that do not know the file (`format`, `flush`)
//!     need not change it.
//! C5. A record never makes an origin unusable permanently: `state forget` drops it.
//!
//! What a crash leaves: before a table goes live its record is written, so a live table always has
//! one. Between the end of a cache and its record, `in-use` stays, and the device decides (C4).
//! After a `given-up` whose table was never live, the cache must be formatted, or forgotten once
//! more.
//!
//! A device is recognised by its identity or by the argument that names it: a file that was copied
//! back has another identity, a file that was moved has another name. Devices that end with the
//! server (`mem:`, `null:`) are not recorded.

use std::path::Path;
use std::sync::Arc;

use cairn_block::{ConfigKind, Disk, Identity, Registry};
use cairn_outcome::failure::{Outcome, refused};
use serde::{Deserialize, Serialize};

use super::{Contents, StateFile};

/// A cache in front of an origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheRecord {
    /// Where its metadata and slots lie, beneath all remappers.
    pub cache: Vec<Extent>,
    /// Where its origin lies, likewise.
    pub origin: Vec<Extent>,
    /// The volume whose table has it, or had it last.
    pub volume: String,
    /// The cache device and the origin, as that table names them.
    pub names: (String, String),
    /// Its state.
    pub state: CacheState,
    /// The bytes that the origin lacks, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// The state of a recorded cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CacheState {
    /// A table with it is live, or was when the server was killed.
    InUse,
    /// It was left dirty.
    Left,
    /// Its dirty blocks are given up: it must be formatted before it is used again.
    GivenUp,
}

/// A range of a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Extent {
    /// The device, as an argument of a table names it.
    pub device: String,
    /// Its identity then.
    pub identity: Known,
    /// In sectors.
    pub start: u64,
    /// In sectors.
    pub count: u64,
}

impl Extent {
    /// True if both are the same range of one device. The system may number block devices in
    /// another order at each boot, so these are known by their names, too.
    fn is_same(&self, other: &Extent) -> bool {
        let are_blocks =
            matches!((&self.identity, &other.identity), (Known::Block(_), Known::Block(_)));
        let same_device =
            self.identity == other.identity || (are_blocks && self.device == other.device);
        same_device && (self.start, self.count) == (other.start, other.count)
    }
}

/// An identity that outlives a server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Known {
    /// A file.
    File {
        /// st_dev.
        device: u64,
        /// st_ino.
        inode: u64,
        /// Nanoseconds since 1970; 0 if the file system does not tell.
        birth_ns: i64,
    },
    /// A block device, by st_rdev.
    Block(u64),
    /// A volume, by name.
    Volume(String),
}

impl Known {
    /// None for a device that ends with the server.
    pub fn of(identity: &Identity) -> Option<Known> {
        match identity {
            Identity::File { device, inode, birth_ns } => {
                let birth_ns = i64::try_from(*birth_ns).unwrap_or(0);
                Some(Known::File { device: *device, inode: *inode, birth_ns })
            }
            // The sequence means nothing after the machine starts again.
            Identity::Block { number, .. } => Some(Known::Block(*number)),
            Identity::Volume(name) => Some(Known::Volume(name.clone())),
            Identity::Remote(_) | Identity::Unique(_) => None,
        }
    }

    /// What of this identity is open, or the volume.
    pub fn opened(&self, registry: &Registry) -> Option<Arc<dyn Disk>> {
        match self {
            Known::Volume(name) => registry.opened(&Identity::Volume(name.clone())),
            known => registry.opened_if(|identity| Known::of(identity).as_ref() == Some(known)),
        }
    }
}

impl CacheRecord {
    /// True if both are of one cache device, from one sector on. Another device of the same name is
    /// the same cache only before the same origin, as a copy of it is.
    pub fn is_same_cache(&self, other: &CacheRecord) -> bool {
        let (Some(one), Some(another)) = (self.cache.first(), other.cache.first()) else {
            return false;
        };
        let same_origin = self.origin.len() == other.origin.len()
            && self.origin.iter().zip(&other.origin).all(|(own, theirs)| own.is_same(theirs));
        let same_device =
            one.identity == another.identity || (one.device == another.device && same_origin);
        one.start == another.start && same_device
    }

    /// True if this argument names its cache device.
    pub fn is_called(&self, name: &str) -> bool {
        self.names.0 == name || self.cache.iter().any(|extent| extent.device == name)
    }

    /// True unless its dirty blocks are given up.
    pub fn may_be_dirty(&self) -> bool {
        self.state != CacheState::GivenUp
    }

    /// A message: the dirty bytes, and the verb that gives them up.
    pub fn way_out(&self, state: &Path) -> (String, String) {
        let (device, state) = (&self.names.0, state.display());
        let way = format!(
            "cairn state forget {device} --yes loses it, with --state {state} if no server runs"
        );
        (self.what_it_keeps(), way)
    }

    /// The message when its dirty bytes are given up.
    pub fn farewell(&self) -> String {
        format!(
            "{}; given up: format {} before it is a cache again",
            self.what_it_keeps(),
            self.names.0
        )
    }

    /// Its dirty bytes, in words.
    pub fn what_it_keeps(&self) -> String {
        let (cache, origin) = &self.names;
        match self.bytes {
            Some(bytes) => {
                format!("{cache} keeps {} KiB that {origin} lacks", bytes.div_ceil(1024))
            }
            None => format!("{cache} may keep what {origin} lacks"),
        }
    }
}

/// Forgets the cache of this name: gives up its dirty bytes, or drops the record if they are given
/// up already. None if there is no such cache; else the new records and the message.
///
/// # Errors
/// Data would be lost, and `yes` is missing.
pub fn forget_cache(
    records: &[CacheRecord],
    name: &str,
    yes: bool,
) -> Outcome<Option<(Vec<CacheRecord>, String)>> {
    let Some(at) = records.iter().position(|record| record.is_called(name)) else {
        return Ok(None);
    };
    let mut after = records.to_vec();
    if !after[at].may_be_dirty() {
        after.remove(at);
        return Ok(Some((after, format!("{name}: forgotten: it was given up"))));
    }
    let keeps = after[at].what_it_keeps();
    if !yes {
        let found = format!("that {keeps}, which is lost by it");
        return Err(refused(ConfigKind::Argument, name, "forget", found, "--yes as well"));
    }
    after[at].state = CacheState::GivenUp;
    Ok(Some((after, format!("{name}: given up: {keeps}"))))
}

impl StateFile {
    /// The caches that may be dirty, or are given up.
    pub fn caches(&self) -> Vec<CacheRecord> {
        self.inner.lock().contents.caches.clone()
    }

    /// Changes the records of caches. Durable when it returns.
    ///
    /// # Errors
    /// The system refused to write.
    pub fn record_caches(&self, change: impl FnOnce(&mut Vec<CacheRecord>)) -> Outcome<()> {
        let mut inner = self.inner.lock();
        let mut next: Contents = inner.latest();
        change(&mut next.caches);
        self.put(&mut inner, next)
    }
}

#[cfg(test)]
mod tests {
    use super::{CacheRecord, CacheState, Extent, Known, forget_cache};
    use crate::state::{Record, StateFile};

    fn record(device: &str, inode: u64) -> CacheRecord {
        let extent = |device: &str, inode| {
            let identity = Known::File { device: 1, inode, birth_ns: 7 };
            vec![Extent { device: device.to_owned(), identity, start: 0, count: 8 }]
        };
        CacheRecord {
            cache: extent(device, inode),
            origin: extent("slow", 100),
            volume: "v".to_owned(),
            names: (device.to_owned(), "slow".to_owned()),
            state: CacheState::InUse,
            bytes: None,
        }
    }

    #[test]
    fn a_cache_is_known_again_by_its_name_or_its_identity() {
        let one = record("fast", 1);
        assert!(one.is_same_cache(&record("fast", 2)) && one.is_same_cache(&record("moved", 1)));
        assert!(!one.is_same_cache(&record("other", 2)));
        let mut before_another = record("fast", 2);
        before_another.origin = record("other", 2).cache;
        assert!(!one.is_same_cache(&before_another));
        let mut beside = record("fast", 1);
        beside.cache[0].start = 8;
        assert!(!one.is_same_cache(&beside));
    }

    #[test]
    fn records_of_caches_survive_reopening_and_are_no_changes_of_verbs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("vm.state");
        let state = StateFile::open(&path).unwrap();
        state.record_caches(|caches| caches.push(record("fast", 1))).unwrap();
        assert!(path.exists() && !state.has_changes());
        let again = StateFile::open(&path).unwrap();
        assert_eq!(again.caches(), [record("fast", 1)]);
        again.record(Vec::new()).unwrap();
        assert!(!again.has_changes());
        let table = Some("0 8 zero".to_owned());
        again.record(vec![Record { table, ..Record::as_configured("w", None) }]).unwrap();
        assert!(again.has_changes() && again.caches().len() == 1);
        again.record(vec![Record::as_configured("w", None)]).unwrap();
        assert!(StateFile::open(&path).unwrap().has_changes(), "a verb changed something once");
    }

    #[test]
    fn a_forgotten_cache_is_given_up_and_then_gone() {
        let all = [record("fast", 1)];
        assert_eq!(forget_cache(&all, "slow", true).unwrap(), None);
        let line = forget_cache(&all, "fast", false).unwrap_err().to_string();
        assert!(line.contains("found that fast may keep what slow lacks, which is lost"), "{line}");
        let (given_up, told) = forget_cache(&all, "fast", true).unwrap().unwrap();
        assert_eq!(told, "fast: given up: fast may keep what slow lacks");
        assert!(!given_up[0].may_be_dirty());
        let (gone, _) = forget_cache(&given_up, "fast", false).unwrap().unwrap();
        assert!(gone.is_empty());
    }
}

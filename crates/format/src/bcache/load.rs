//! Reads a whole cache: its journal, priorities, volumes, and the extents of its tree.
//!
//! The order is that of the format's documentation: the journal's newest entry names all else. The
//! journal is replayed in memory, and nothing is written. What is wrong goes to a [`Visitor`],
//! which says whether reading goes on.
//!
//! **Generations.** A pointer counts if its generation is not behind its bucket's. A bucket's
//! generation is the newest of what the priorities, the tree and the journal say. So extents are
//! judged once all of them are known, in [`Loaded::extents`]; children are judged when their node
//! is read, after the keys of the same node that free former children.
//!
//! **Stale keys in the journal.** A bucket is reused once nothing needs what it holds. Each key
//! takes the place of those before it, stale or not: it was written after them, so none of them may
//! come back. What counts where the last one is stale is then not in the journal:
//!
//! - A clean one was evicted, perhaps before its leaf was written. What the tree has may be older,
//!   and the backing device has the data: there is a hole.
//! - A dirty one was moved or written back, which no entry says. A garbage collection found the
//!   bucket without use, and writes all leaves before it ends; only then is the bucket reused. So
//!   what the tree has is newer, and counts. (The kernel replays such keys, and loses what it
//!   moved.)
//! - But a root that is a leaf is not written by the garbage collection. It may have an older dirty
//!   key, or the stale one, where the data was written back since: there is a hole, as the kernel
//!   has it. Had the data been moved instead, and the leaf been written after the last entry of the
//!   journal, the hole would hide it; moving is off in a kernel unless someone asks for it, and
//!   what cairn moves is journaled.
//!
//! Memory: a few bytes per bucket, the nodes being read, [`BATCH_BYTES`] of leaves, and the keys of
//! those entries of the journal that count. Each bucket is read as a node at most once, so that a
//! tree of any damage ends.

mod ring;

use std::convert::Infallible;
use std::future::Future;
use std::ops::{ControlFlow, Range};
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::extents::{latest, overlaid};
use super::journal::{EntryFault, Header, Ring, RingFault};
use super::node::{Node, NodeFault, extents_of};
use super::priorities::{PrioritiesFault, PrioritySet, Record};
use super::uuids::{self, UuidEntry};
use super::{
    Age, CacheSuperblock, Generation, Geometry, Key, KeyError, OFFSET_MAX, Pointer, SECTOR_BYTES,
    SECTORS_MAX, SetMagic,
};

/// How many bytes of leaves are read together.
pub const BATCH_BYTES: u64 = 8 << 20;
/// The highest level that a root can have: each level multiplies what is beneath it.
const LEVEL_MAX: u16 = 15;

/// Where the bytes of a cache device come from.
pub trait Source {
    /// Why reading ends before it is done.
    type Error;

    /// Reads ranges of sectors. Each has its bytes, or what the system said.
    ///
    /// # Errors
    /// Reading is to end.
    fn read(
        &mut self,
        ranges: &[Range<u64>],
    ) -> impl Future<Output = Result<Vec<Result<Vec<u8>, String>>, Self::Error>>;
}

/// A device in memory.
impl Source for &[u8] {
    type Error = Infallible;

    async fn read(
        &mut self,
        ranges: &[Range<u64>],
    ) -> Result<Vec<Result<Vec<u8>, String>>, Infallible> {
        let bytes = |range: &Range<u64>| {
            let range = range.start as usize * SECTOR_BYTES..range.end as usize * SECTOR_BYTES;
            self.get(range).map(<[u8]>::to_vec).ok_or_else(|| "beyond the end".to_owned())
        };
        Ok(ranges.iter().map(bytes).collect())
    }
}

/// A device in memory whose ranges of sectors are read by a function.
pub struct InMemory<F>(pub F);

impl<F: FnMut(&Range<u64>) -> Vec<u8>> Source for InMemory<F> {
    type Error = Infallible;

    async fn read(
        &mut self,
        ranges: &[Range<u64>],
    ) -> Result<Vec<Result<Vec<u8>, String>>, Infallible> {
        Ok(ranges.iter().map(|range| Ok((self.0)(range))).collect())
    }
}

/// Receives what is read of a cache.
pub trait Visitor {
    /// Something is wrong; what it held is left out if reading goes on.
    fn fault(&mut self, fault: &Fault) -> ControlFlow<()>;

    /// A node that was read.
    fn node(&mut self, _at: &NodePlace, _node: &Node<'_>) {}

    /// An extent of a leaf, in order. Keys of older bsets of its node are left out where
    /// newer ones cover them.
    fn extent(&mut self, key: Key);

    /// An extent or a hole of a damaged leaf that is newer than the damage.
    fn newer_than_damage(&mut self, _key: Key) {}
}

/// Where a node is in the tree and on the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NodePlace {
    /// The key that leads to it.
    pub key: Key,
    /// How far it is above the leaves.
    pub level: u16,
    /// What it holds is behind this position.
    pub after: (u32, u64),
}

/// Where something is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// A bucket of the ring.
    Journal {
        /// Its index in the ring.
        index: usize,
    },
    /// The ring as a whole.
    Ring,
    /// An entry of the journal that counts.
    Newest {
        /// Its number.
        seq: u64,
    },
    /// A prio_set.
    Priorities {
        /// Its bucket.
        bucket: u64,
    },
    /// The array of uuids.
    Uuids,
    /// A node.
    Node(NodePlace),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Journal { index } => write!(f, "journal bucket {index}"),
            Place::Ring => write!(f, "journal"),
            Place::Newest { seq } => write!(f, "journal entry {seq}"),
            Place::Priorities { bucket } => write!(f, "priorities in bucket {bucket}"),
            Place::Uuids => write!(f, "uuids"),
            Place::Node(NodePlace { key, level, .. }) => {
                let sector = key.cached_at().map_or(0, Pointer::sector);
                write!(f, "node of level {level} at sector {sector}")
            }
        }
    }
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {what}")]
pub struct Fault {
    /// Where.
    pub place: Place,
    /// What.
    pub what: What,
}

/// What is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum What {
    /// The system refused to read it.
    #[error("cannot be read: {0}")]
    Unreadable(String),
    /// The entries are no journal.
    #[error(transparent)]
    Ring(#[from] RingFault),
    /// An entry is damaged.
    #[error(transparent)]
    Entry(#[from] EntryFault),
    /// A key of an entry that counts does not decode.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A prio_set is damaged.
    #[error(transparent)]
    Priorities(#[from] PrioritiesFault),
    /// A node is damaged.
    #[error(transparent)]
    Node(#[from] NodeFault),
    /// A bucket number beyond the buckets.
    #[error("bucket: found {found}, expected {} to {}", expected.start, expected.end - 1)]
    Bucket {
        /// The number.
        found: u64,
        /// The usable buckets.
        expected: Range<u64>,
    },
    /// A key that leads out of the device or over the end of a bucket, or nowhere at all.
    #[error("key {0:?}: found no place within one bucket, expected one")]
    Pointer(Key),
    /// An extent that begins before its volume, or reaches beyond the highest position.
    #[error("key {0:?}: found it out of range, expected an extent of sectors 0 to {OFFSET_MAX}")]
    Range(Key),
    /// A volume that is larger than any device can be.
    #[error("volume {inode}: sectors: found {sectors}, expected at most {SECTORS_MAX}")]
    Size {
        /// Its inode.
        inode: usize,
        /// Its size.
        sectors: u64,
    },
    /// A key or level that no root has.
    #[error("root: found {key:?} at level {level}, expected the highest position and at most 15")]
    Root {
        /// The key of the root.
        key: Key,
        /// Its level.
        level: u16,
    },
    /// A key that is not what its node may hold.
    #[error(
        "key {key:?}: found it outside of its node, expected it behind {after:?} up to {upto:?}"
    )]
    Outside {
        /// The key.
        key: Key,
        /// What the node holds is behind this position.
        after: (u32, u64),
        /// And up to this one.
        upto: (u32, u64),
    },
    /// Two children that end at one position.
    #[error("children: found {first:?} and {second:?} at one position, expected one")]
    SamePosition {
        /// The one.
        first: Key,
        /// The other.
        second: Key,
    },
    /// Children that do not reach the end of their node.
    #[error("children: found the last at {found:?}, expected it at {expected:?}")]
    Children {
        /// The position of the last child.
        found: (u32, u64),
        /// The node's own.
        expected: (u32, u64),
    },
    /// A chain of buckets comes back to itself.
    #[error("bucket: found {bucket} again, expected each bucket once")]
    Loop {
        /// The bucket.
        bucket: u64,
    },
    /// Another key leads to the same bucket.
    #[error("bucket {bucket}: found a second node in it, expected one")]
    Twice {
        /// The bucket.
        bucket: u64,
    },
}

/// Why a cache could not be read.
#[derive(Debug, thiserror::Error)]
pub enum LoadError<E> {
    /// Reading ended.
    #[error("reading ended")]
    Source(E),
    /// Something is wrong, and the visitor ended it, or nothing can be read without it.
    #[error(transparent)]
    Fault(Box<Fault>),
}

/// The contents of a cache, except the extents of its tree, which the visitor got.
#[derive(Debug)]
pub struct Loaded {
    /// What the newest entry of the journal says.
    pub newest: Header,
    /// The entries that count.
    pub ring: Ring,
    /// What lies where the entry behind the newest would be, if it is a part of one.
    pub torn: Option<Fault>,
    /// The keys of the entries that count, oldest first.
    pub journal: Vec<Key>,
    /// What is known of each bucket; the generations are the newest there are.
    pub buckets: Vec<Record>,
    /// The volumes; the index of each is its inode.
    pub volumes: Vec<UuidEntry>,
    /// The buckets of the prio_sets, in order.
    pub priorities: Vec<u64>,
}

impl Loaded {
    /// What is cached, in order: the tree's extents with the journal's over them. `tree` is what
    /// the visitor got.
    #[must_use]
    pub fn extents(&self, geometry: &Geometry, tree: Vec<Key>) -> Vec<Key> {
        let mut all = overlaid(tree, &self.journaled(geometry));
        self.keep_live(geometry, &mut all);
        all
    }

    /// Adds keys that are newer than those of all entries. False if one of them cannot be right:
    /// none is added then.
    #[must_use]
    pub fn add_newer(&mut self, geometry: &Geometry, keys: &[Key]) -> bool {
        let is_sound = |key: &Key| key.sectors() > 0 && key.is_in_range();
        let are_sound = keys.iter().all(|key| is_sound(key) && leads_well(geometry, key));
        if are_sound {
            keys.iter().for_each(|key| raise(&mut self.buckets, geometry, key));
            self.journal.extend(keys);
        }
        are_sound
    }

    /// Drops the extents that lead nowhere, and the stale ones.
    pub fn keep_live(&self, geometry: &Geometry, extents: &mut Vec<Key>) {
        extents.retain(|key| key.cached_at().is_some() && !self.is_stale(geometry, key));
    }

    /// What the journal lays over the tree, in order: extents, and holes.
    #[must_use]
    pub fn journaled(&self, geometry: &Geometry) -> Vec<Key> {
        let latest = latest(self.journal.iter().copied());
        latest.into_iter().filter_map(|key| self.says(geometry, &key)).collect()
    }

    /// What a key of the journal says of its range, where no later key of the journal has any of
    /// it: that it is an extent, or a hole, or nothing, so that what the tree has counts.
    #[must_use]
    fn says(&self, geometry: &Geometry, key: &Key) -> Option<Key> {
        match self.is_stale(geometry, key) {
            false => Some(*key),
            true if key.is_dirty() && self.newest.root_level > 0 => None,
            true => Some(key.without_pointer()),
        }
    }

    /// True if a key's bucket was reused since the key was made.
    #[must_use]
    pub fn is_stale(&self, geometry: &Geometry, key: &Key) -> bool {
        let Some(pointer) = key.cached_at() else { return false };
        let bucket = self.buckets.get(geometry.bucket_of(pointer.sector()) as usize);
        bucket.is_some_and(|bucket| bucket.generation.outdates(pointer.generation()))
    }
}

/// Reads a cache.
///
/// # Errors
/// Reading ended, something without which nothing can be read is wrong, or the visitor ended it.
pub async fn load<S: Source, V: Visitor>(
    source: &mut S,
    superblock: &CacheSuperblock,
    visitor: &mut V,
) -> Result<Loaded, LoadError<S::Error>> {
    let geometry = *superblock.geometry();
    let magic = superblock.set_uuid().set_magic();
    let mut loader = Loader { source, visitor, geometry, magic };
    let (ring, torn) = loader.ring(superblock).await?;
    let newest = ring.newest().header;
    let journal = loader.journal(&ring, superblock).await?;
    let (buckets, priorities) = loader.priorities(&newest).await?;
    let volumes = loader.volumes(&newest).await?;
    let mut walk = TreeWalk { loader, buckets, visited: vec![false; geometry.buckets() as usize] };
    walk.tree(&newest).await?;
    for key in &journal {
        walk.raise(key);
    }
    let buckets = walk.buckets;
    Ok(Loaded { newest, ring, torn, journal, buckets, volumes, priorities })
}

/// Reads the volumes of a cache, and nothing else.
///
/// # Errors
/// Reading ended, or the journal or the volumes are damaged.
pub async fn load_volumes<S: Source>(
    source: &mut S,
    superblock: &CacheSuperblock,
) -> Result<Vec<UuidEntry>, LoadError<S::Error>> {
    struct Strict;
    impl Visitor for Strict {
        fn fault(&mut self, _: &Fault) -> ControlFlow<()> {
            ControlFlow::Break(())
        }
        fn extent(&mut self, _: Key) {}
    }
    let (geometry, magic) = (*superblock.geometry(), superblock.set_uuid().set_magic());
    let mut loader = Loader { source, visitor: &mut Strict, geometry, magic };
    let (ring, _) = loader.ring(superblock).await?;
    loader.volumes(&ring.newest().header).await
}

/// Reads a cache from a source that never waits.
///
/// # Errors
/// As [`load`].
///
/// # Panics
/// The source waits.
pub fn load_now<S: Source, V: Visitor>(
    mut source: S,
    superblock: &CacheSuperblock,
    visitor: &mut V,
) -> Result<Loaded, LoadError<S::Error>> {
    now(load(&mut source, superblock, visitor))
}

/// The result of a future over sources that never wait.
///
/// # Panics
/// It waits.
pub fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("a source waits, and no task would wake it"),
    }
}

struct Loader<'a, S, V> {
    source: &'a mut S,
    visitor: &'a mut V,
    geometry: Geometry,
    magic: SetMagic,
}

type Outcome<T, S> = Result<T, LoadError<<S as Source>::Error>>;

impl<S: Source, V: Visitor> Loader<'_, S, V> {
    /// Reports a fault to the visitor, which may end the reading.
    fn report(&mut self, place: Place, what: impl Into<What>) -> Outcome<(), S> {
        let fault = Fault { place, what: what.into() };
        match self.visitor.fault(&fault) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(LoadError::Fault(Box::new(fault))),
        }
    }

    async fn read(&mut self, ranges: &[Range<u64>]) -> Outcome<Vec<Result<Vec<u8>, String>>, S> {
        self.source.read(ranges).await.map_err(LoadError::Source)
    }

    async fn read_one(&mut self, place: Place, range: Range<u64>) -> Outcome<Option<Vec<u8>>, S> {
        let bytes = self.read(&[range]).await?.pop().expect("one for each range");
        self.or_report(place, bytes)
    }

    /// Reads sectors block by block, with zeros for what cannot be read. Answers the bytes, and
    /// where the last of those zeros end; 0 if there are none.
    async fn read_blocks(&mut self, sectors: &Range<u64>) -> Outcome<(Vec<u8>, usize), S> {
        let step = u64::from(self.geometry.block_sectors());
        let blocks: Vec<Range<u64>> = sectors
            .clone()
            .step_by(step as usize)
            .map(|start| start..(start + step).min(sectors.end))
            .collect();
        let (mut bytes, mut unreadable_end) = (Vec::new(), 0);
        let read = self.read(&blocks).await?;
        for (range, block) in blocks.iter().zip(read) {
            let is_read = block.is_ok();
            let length = (range.end - range.start) as usize * SECTOR_BYTES;
            bytes.extend(block.unwrap_or_else(|_| vec![0; length]));
            if !is_read {
                unreadable_end = bytes.len();
            }
        }
        Ok((bytes, unreadable_end))
    }

    /// What was read. If nothing was, the visitor gets the fault.
    fn or_report(
        &mut self,
        place: Place,
        bytes: Result<Vec<u8>, String>,
    ) -> Outcome<Option<Vec<u8>>, S> {
        match bytes {
            Ok(bytes) => Ok(Some(bytes)),
            Err(error) => self.report(place, What::Unreadable(error)).map(|()| None),
        }
    }

    async fn priorities(&mut self, newest: &Header) -> Outcome<(Vec<Record>, Vec<u64>), S> {
        let mut records = Vec::with_capacity(self.geometry.buckets() as usize);
        let mut chain = Vec::new();
        let mut bucket = newest.priorities;
        for _ in 0..self.geometry.priority_sets() {
            let place = Place::Priorities { bucket };
            let expected = self.geometry.usable();
            if !expected.contains(&bucket) {
                self.report(place, What::Bucket { found: bucket, expected })?;
                break;
            }
            if chain.contains(&bucket) {
                self.report(place, What::Loop { bucket })?;
                break;
            }
            let sector = self.geometry.sector_of(bucket);
            let range = sector..sector + self.geometry.meta_sectors();
            let Some(bytes) = self.read_one(place.clone(), range).await? else { break };
            let set = match PrioritySet::read(&bytes, self.magic) {
                Ok(set) => set,
                Err(fault) => {
                    self.report(place, fault)?;
                    break;
                }
            };
            records.extend(set.records());
            chain.push(bucket);
            bucket = set.next_bucket;
        }
        records.resize(self.geometry.buckets() as usize, Record::default());
        Ok((records, chain))
    }

    async fn volumes(&mut self, newest: &Header) -> Outcome<Vec<UuidEntry>, S> {
        let key = newest.uuids;
        let (Some(pointer), true) = (key.cached_at(), leads_well(&self.geometry, &key)) else {
            return self.report(Place::Uuids, What::Pointer(key)).map(|()| Vec::new());
        };
        let range = pointer.sector()..pointer.sector() + key.sectors();
        let bytes = self.read_one(Place::Uuids, range).await?.unwrap_or_default();
        let mut volumes = uuids::read(&bytes, newest.has_long_uuids);
        let is_too_large = |entry: &UuidEntry| entry.is_flash_only() && entry.sectors > SECTORS_MAX;
        for (inode, entry) in volumes.iter_mut().enumerate().filter(|it| is_too_large(it.1)) {
            let sectors = std::mem::replace(&mut entry.sectors, SECTORS_MAX);
            self.report(Place::Uuids, What::Size { inode, sectors })?;
        }
        Ok(volumes)
    }
}

/// True if a key leads nowhere, or to one usable bucket.
fn leads_well(geometry: &Geometry, key: &Key) -> bool {
    let fits = |pointer: Pointer| geometry.holds(pointer.sector(), key.sectors());
    key.cached_at().is_none_or(fits)
}

struct TreeWalk<'a, S, V> {
    loader: Loader<'a, S, V>,
    buckets: Vec<Record>,
    /// Buckets that a node was read from.
    visited: Vec<bool>,
}

/// An interior node whose children are being read.
struct Open {
    children: std::vec::IntoIter<Key>,
    level: u16,
    /// The position of the child before the next one.
    after: (u32, u64),
}

impl<S: Source, V: Visitor> TreeWalk<'_, S, V> {
    async fn tree(&mut self, newest: &Header) -> Outcome<(), S> {
        let (key, level) = (newest.root, newest.root_level);
        let place = Place::Newest { seq: newest.seq };
        if key.position() != Key::MAX.position() || level > LEVEL_MAX || key.sectors() == 0 {
            return self.loader.report(place, What::Root { key, level });
        }
        let root = NodePlace { key, level, after: (0, 0) };
        let mut open = Vec::new();
        self.nodes(&[root], &mut open).await?;
        while let Some(node) = open.last_mut() {
            let room = if node.level > 1 { 1 } else { self.batch(newest) };
            let (level, mut after) = (node.level - 1, node.after);
            let mut places = Vec::new();
            for key in node.children.by_ref().take(room) {
                places.push(NodePlace { key, level, after });
                after = key.position();
            }
            node.after = after;
            if places.is_empty() {
                open.pop();
            } else {
                self.nodes(&places, &mut open).await?;
            }
        }
        Ok(())
    }

    /// How many leaves are read together.
    fn batch(&self, newest: &Header) -> usize {
        (BATCH_BYTES / (newest.root.sectors().max(8) * SECTOR_BYTES as u64)).max(1) as usize
    }

    /// Reads nodes of one level; an interior one is opened.
    async fn nodes(&mut self, places: &[NodePlace], open: &mut Vec<Open>) -> Outcome<(), S> {
        let mut sound = Vec::with_capacity(places.len());
        let mut ranges = Vec::with_capacity(places.len());
        for place in places {
            if let Some(range) = self.admit(place)? {
                sound.push(*place);
                ranges.push(range);
            }
        }
        let read = self.loader.read(&ranges).await?;
        for ((place, range), bytes) in sound.iter().zip(&ranges).zip(read) {
            match bytes {
                Ok(bytes) => open.extend(self.node(place, &bytes, 0)?),
                Err(error) => {
                    self.loader.report(Place::Node(*place), What::Unreadable(error))?;
                    let (bytes, unreadable_end) = self.loader.read_blocks(range).await?;
                    open.extend(self.node(place, &bytes, unreadable_end)?);
                }
            }
        }
        Ok(())
    }

    /// The sectors of a node that may be read.
    fn admit(&mut self, place: &NodePlace) -> Outcome<Option<Range<u64>>, S> {
        let (geometry, key) = (self.loader.geometry, place.key);
        let pointer = key.cached_at().filter(|at| {
            key.sectors() > 0
                && at.sector().is_multiple_of(geometry.bucket_sectors())
                && geometry.holds(at.sector(), key.sectors())
        });
        let Some(pointer) = pointer else {
            return self.loader.report(Place::Node(*place), What::Pointer(key)).map(|()| None);
        };
        let bucket = geometry.bucket_of(pointer.sector());
        let visited = &mut self.visited[bucket as usize];
        if std::mem::replace(visited, true) {
            return self.loader.report(Place::Node(*place), What::Twice { bucket }).map(|()| None);
        }
        self.raise(&key);
        Ok(Some(pointer.sector()..pointer.sector() + key.sectors()))
    }

    /// Takes what is sound of a node. Bytes that cannot be read are zeros, and end at
    /// `unreadable_end`.
    fn node(
        &mut self,
        place: &NodePlace,
        bytes: &[u8],
        unreadable_end: usize,
    ) -> Outcome<Option<Open>, S> {
        let pointer = place.key.cached_at().expect("it was read from there");
        let (magic, block_bytes) = (self.loader.magic, self.loader.geometry.block_bytes());
        let node = Node::read(bytes, pointer, magic, block_bytes);
        if let Some(fault) = node.fault().filter(|_| unreadable_end == 0) {
            self.loader.report(Place::Node(*place), fault.clone())?;
        }
        self.loader.visitor.node(place, &node);
        if place.level > 0 {
            let is_gone = unreadable_end > 0 && node.sets().is_empty();
            return if is_gone { Ok(None) } else { self.interior(place, &node) };
        }
        let is_whole = node.fault().is_none() && unreadable_end == 0;
        let newer = match is_whole {
            true => Vec::new(),
            false => node.behind_damage(bytes, unreadable_end, pointer, magic, block_bytes),
        };
        let newer = extents_of(&newer).unwrap_or_default();
        self.leaf(place, &node, &newer).map(|()| None)
    }

    /// Takes the extents of a leaf; `newer` are those behind its damage.
    fn leaf(&mut self, place: &NodePlace, node: &Node<'_>, newer: &[Key]) -> Outcome<(), S> {
        let extents = match node.extents() {
            Ok(extents) if newer.is_empty() => extents,
            Ok(extents) => overlaid(extents, newer),
            Err(fault) => return self.loader.report(Place::Node(*place), fault),
        };
        let (geometry, after, upto) = (self.loader.geometry, place.after, place.key.position());
        let is_inside = |key: &Key| key.begin() >= after && key.position() <= upto;
        for key in newer.iter().filter(|key| leads_well(&geometry, key) && is_inside(key)) {
            self.loader.visitor.newer_than_damage(*key);
        }
        for key in extents {
            if !leads_well(&geometry, &key) {
                self.loader.report(Place::Node(*place), What::Pointer(key))?;
            } else if !is_inside(&key) {
                let what = What::Outside { key, after, upto };
                self.loader.report(Place::Node(*place), what)?;
            } else {
                self.raise(&key);
                self.loader.visitor.extent(key);
            }
        }
        Ok(())
    }

    fn interior(&mut self, place: &NodePlace, node: &Node<'_>) -> Outcome<Option<Open>, S> {
        let keys = match node.children() {
            Ok(keys) => keys,
            Err(fault) => {
                return self.loader.report(Place::Node(*place), fault).map(|()| None);
            }
        };
        let (freeing, mut children): (Vec<Key>, Vec<Key>) =
            keys.into_iter().partition(|key| key.position() == (0, 0));
        freeing.iter().for_each(|key| self.raise(key));
        children.retain(|key| !self.is_stale(key));
        children.sort_by_key(Key::position);
        let (after, upto) = (place.after, place.key.position());
        let is_inside = |key: &&Key| key.position() > after && key.position() <= upto;
        if let Some(key) = children.iter().find(|key| !is_inside(key)) {
            let what = What::Outside { key: *key, after, upto };
            self.loader.report(Place::Node(*place), what)?;
            children.retain(|key| is_inside(&key));
        }
        let mut same = Vec::new();
        children.dedup_by(|second, first| {
            let is_same = first.position() == second.position();
            same.extend(is_same.then_some(What::SamePosition { first: *first, second: *second }));
            is_same
        });
        for what in same {
            self.loader.report(Place::Node(*place), what)?;
        }
        let found = children.last().map_or((0, 0), Key::position);
        if found != upto {
            self.loader.report(Place::Node(*place), What::Children { found, expected: upto })?;
        }
        Ok(Some(Open { children: children.into_iter(), level: place.level, after }))
    }

    fn raise(&mut self, key: &Key) {
        raise(&mut self.buckets, &self.loader.geometry, key);
    }

    fn is_stale(&mut self, key: &Key) -> bool {
        let found = bucket_of(&mut self.buckets, &self.loader.geometry, key);
        found.is_some_and(|(bucket, found)| bucket.generation.outdates(found))
    }
}

fn bucket_of<'b>(
    buckets: &'b mut [Record],
    geometry: &Geometry,
    key: &Key,
) -> Option<(&'b mut Record, Generation)> {
    let pointer = key.cached_at()?;
    let bucket = geometry.bucket_of(pointer.sector()) as usize;
    buckets.get_mut(bucket).map(|record| (record, pointer.generation()))
}

/// Raises the generation of a key's bucket to the key's, if that is newer.
fn raise(buckets: &mut [Record], geometry: &Geometry, key: &Key) {
    if let Some((bucket, generation)) = bucket_of(buckets, geometry, key)
        && bucket.generation.age_of(generation) == Age::Newer
    {
        bucket.generation = generation;
    }
}

#[cfg(test)]
mod tests;

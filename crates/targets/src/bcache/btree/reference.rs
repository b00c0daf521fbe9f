//! The reference model of the tree: a map of sectors, and a device in memory that plans are written
//! to. What is read back from the device is compared with the map.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use cairn_format::bcache::build::{Builder, WriteSectors};
use cairn_format::bcache::journal::{Header, encode};
use cairn_format::bcache::load::{Fault, Loaded, NodePlace, Visitor, load_now};
use cairn_format::bcache::node::Node as NodeRead;
use cairn_format::bcache::{
    CacheSuperblock, Generation, Geometry, Key, NewCache, Pointer, Replacement, Uuid,
};

use super::{Fill, NoBucket, Node, Plan, Tree, Unwritten};
use crate::bcache::buckets::Buckets;
use crate::bcache::work;

/// The bucket that all extents of [`extent`] lie in.
pub const DATA: u64 = 200;

/// An extent of one sector.
pub fn extent(inode: u32, start: u64, dirty: bool) -> Key {
    let pointer = Pointer::new(DATA * 8 + start % 8, Generation(0));
    Key::new(inode, start + 1, 1).at(pointer).with_dirty(dirty)
}

pub fn hole(inode: u32, start: u64, sectors: u64) -> Key {
    Key::new(inode, start + sectors, sectors)
}

/// Where each sector of each volume lies, and whether it is dirty.
pub type Sectors = BTreeMap<(u32, u64), (Pointer, bool)>;

/// Lays keys over a map.
pub fn lay_over(sectors: &mut Sectors, keys: &[Key]) {
    for key in keys {
        for sector in key.start()..key.end() {
            let part = key.part(sector, sector + 1).expect("within it");
            match part.cached_at() {
                Some(pointer) => sectors.insert((key.inode(), sector), (pointer, part.is_dirty())),
                None => sectors.remove(&(key.inode(), sector)),
            };
        }
    }
}

/// Swaps keys in a map: each sector that still leads to where `old` leads gets what `new` has.
/// Answers how many did.
pub fn replace_in(sectors: &mut Sectors, old: &Key, new: &Key) -> u64 {
    let mut replaced = 0;
    for sector in old.start()..old.end() {
        let part = |key: &Key| key.part(sector, sector + 1).expect("within it");
        let place = part(old).cached_at().map(|pointer| (pointer, old.is_dirty()));
        if place.is_some() && sectors.get(&(old.inode(), sector)).copied() == place {
            lay_over(sectors, &[part(new)]);
            replaced += 1;
        }
    }
    replaced
}

/// What extents amount to.
pub fn sectors_of<'k>(keys: impl IntoIterator<Item = &'k Key>) -> Sectors {
    let mut sectors = Sectors::new();
    keys.into_iter().for_each(|key| lay_over(&mut sectors, std::slice::from_ref(key)));
    sectors
}

/// A cache in memory, its tree as it was read, and its buckets.
pub struct Model {
    pub image: Vec<u8>,
    pub superblock: CacheSuperblock,
    pub tree: Tree,
    pub buckets: Buckets,
    /// What the journal says at first.
    newest: Header,
    pub seq: u64,
}

#[derive(Default)]
struct Collector {
    levels: Vec<Vec<Node>>,
    extents: Vec<Key>,
}

impl Visitor for Collector {
    fn fault(&mut self, fault: &Fault) -> ControlFlow<()> {
        panic!("{fault}")
    }

    fn node(&mut self, at: &NodePlace, node: &NodeRead<'_>) {
        let level = usize::from(at.level);
        if self.levels.len() <= level {
            self.levels.resize_with(level + 1, Vec::new);
        }
        self.levels[level].push(Node::new(at.key, node.seq().expect("it is sound"), node.end()));
    }

    fn extent(&mut self, key: Key) {
        self.extents.push(key);
        self.levels[0].last_mut().expect("after its leaf").push_extent(key);
    }
}

fn read(image: &[u8], superblock: &CacheSuperblock) -> (Loaded, Collector) {
    let mut collector = Collector::default();
    let loaded = load_now(image, superblock, &mut collector);
    (loaded.unwrap_or_else(|error| panic!("{error}")), collector)
}

impl Model {
    /// An empty cache of buckets of `bucket_sectors`.
    pub fn new(buckets: u64, bucket_sectors: u64) -> Model {
        let superblock = CacheSuperblock::fresh(&NewCache {
            uuid: Uuid([1; 16]),
            set_uuid: Uuid([2; 16]),
            block_sectors: 1,
            bucket_sectors,
            device_sectors: buckets * bucket_sectors,
            replacement: Replacement::Lru,
            discard: false,
        });
        let superblock = superblock.expect("legal");
        let mut image = vec![0; (buckets * bucket_sectors * 512) as usize];
        let builder = Builder::new(&superblock, 7, &mut image);
        let superblock = builder.finish(&[]).expect("there is room");
        let (loaded, collector) = read(&image, &superblock);
        let (geometry, magic) = (*superblock.geometry(), superblock.set_uuid().set_magic());
        let mut buckets = Buckets::new(geometry, &loaded.buckets);
        let tree = Tree::new(geometry, magic, collector.levels);
        superblock.journal_buckets().for_each(|bucket| buckets.mark_metadata(bucket));
        loaded.priorities.iter().for_each(|bucket| buckets.mark_metadata(*bucket));
        let nodes = tree.nodes().chain([loaded.newest.uuids]);
        let bucket =
            |key: Key| geometry.bucket_of(key.cached_at().expect("it lies there").sector());
        nodes.map(bucket).for_each(|bucket| buckets.mark_metadata(bucket));
        Model { image, superblock, tree, buckets, newest: loaded.newest, seq: 100 }
    }

    pub fn geometry(&self) -> Geometry {
        *self.superblock.geometry()
    }

    /// Marks buckets as used by something else than the tree.
    pub fn take(&mut self, buckets: impl IntoIterator<Item = u64>) {
        buckets.into_iter().for_each(|bucket| self.buckets.mark_metadata(bucket));
    }

    /// Inserts keys and writes all plans.
    pub fn insert(&mut self, keys: Vec<Key>) -> Result<(), NoBucket> {
        let mut unwritten = self.apply(&keys);
        self.write_all(&mut unwritten)
    }

    /// Writes all that leaves lack.
    pub fn write_all(&mut self, unwritten: &mut Unwritten) -> Result<(), NoBucket> {
        while !unwritten.is_empty() {
            let planned = self.plan(unwritten, Fill::Roomy).or_else(|_| {
                self.buckets.refill();
                self.plan(unwritten, Fill::Roomy).or_else(|_| self.plan(unwritten, Fill::Tight))
            });
            let plan = planned?;
            self.write(&plan);
        }
        Ok(())
    }

    /// Puts keys into the tree in memory. Answers what leaves lack then.
    pub fn apply(&mut self, keys: &[Key]) -> Unwritten {
        self.tree.apply(keys, &mut self.buckets);
        Unwritten::of(keys)
    }

    /// Plans the next writes.
    pub fn plan(&mut self, unwritten: &mut Unwritten, fill: Fill) -> Result<Plan, NoBucket> {
        let seq = &mut self.seq;
        let mut next = || {
            *seq += 1;
            *seq
        };
        work::begin();
        let mut planning = self.tree.begin_plan(0, fill);
        let (tree, buckets) = (&mut self.tree, &mut self.buckets);
        while tree.plan_some(&mut planning, unwritten, buckets, &mut next)? {
            work::begin();
        }
        Ok(tree.end_plan(planning, buckets, &mut next))
    }

    pub fn write(&mut self, plan: &Plan) {
        for level in &plan.levels {
            for set in level.fresh.iter().chain(&level.appended) {
                self.image.write(set.sector, &set.bytes).expect("memory");
            }
        }
        plan.replaced.iter().for_each(|pointer| self.buckets.node_replaced(*pointer));
    }

    /// The counts of the buckets are those of the extents in memory.
    pub fn check_counts(&self) {
        let mut recount = Buckets::new(self.geometry(), &[]);
        self.tree.extents().for_each(|key| recount.count(key));
        assert_eq!(self.buckets.counts(), recount.counts());
    }

    /// Reads the tree from the device, from the root that is in memory. Its nodes must be those in
    /// memory, and its sectors those of the model.
    pub fn check(&self, expected: &Sectors) {
        self.tree.check_state().expect("B1 and B3");
        assert_eq!(sectors_of(self.tree.extents()), *expected, "in memory");
        let mut image = self.image.clone();
        let (root, root_level) = self.tree.root();
        let header = Header { seq: 2, last_seq: 2, root, root_level, ..self.newest };
        let magic = self.superblock.set_uuid().set_magic();
        let bytes = encode(&header, &[], magic, self.geometry().block_bytes());
        let bucket = self.superblock.journal_buckets().start;
        image.write(self.geometry().sector_of(bucket), &bytes).expect("memory");
        let (loaded, collector) = read(&image, &self.superblock);
        let keys = |levels: &Vec<Vec<Node>>| -> Vec<Vec<Key>> {
            levels.iter().map(|level| level.iter().map(Node::key).collect()).collect()
        };
        assert_eq!(keys(&collector.levels), keys(&self.tree.levels));
        let extents = loaded.extents(&self.geometry(), collector.extents);
        assert_eq!(sectors_of(&extents), *expected, "on the device");
    }
}

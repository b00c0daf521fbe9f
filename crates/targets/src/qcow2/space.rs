//! [`Space`]: which clusters of the image are in use, and which refcounts have to be written.
//!
//! S1. A cluster is *used* from its allocation until it is released. It is released once no entry
//!     on the disk names it, nor any in memory, and no request that found it is in flight.
//! S2. A cluster that is allocated, and one that is released, is *due*: its refcount is to be
//!     written. It may be due already, then the last decision counts.
//! S3. Each used cluster has a refcount block. The first cluster that is allocated where there is
//!     none becomes that block.
//! S4. `counted` is what the blocks are to say once what is due is written, without what became due
//!     since it was taken.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use cairn_format::qcow2::{per_block, set_refcount};

const WORD_BITS: u64 = 64;
/// Most leaks that one start writes.
const LEAKS_MAX: usize = 1 << 20;

/// One bit for each cluster.
#[derive(Default)]
pub(super) struct Bitmap(Vec<u64>);

impl Bitmap {
    /// All clear.
    pub fn new(bits: u64) -> Bitmap {
        Bitmap(vec![0; bits.div_ceil(WORD_BITS) as usize])
    }

    pub fn is_set(&self, bit: u64) -> bool {
        self.0
            .get((bit / WORD_BITS) as usize)
            .is_some_and(|word| word >> (bit % WORD_BITS) & 1 == 1)
    }

    pub fn put(&mut self, bit: u64, is_set: bool) {
        let at = (bit / WORD_BITS) as usize;
        if at >= self.0.len() {
            self.0.resize(at + 1, 0);
        }
        let word = &mut self.0[at];
        let mask = 1 << (bit % WORD_BITS);
        *word = if is_set { *word | mask } else { *word & !mask };
    }

    /// The 64 bits from one on that is a multiple of that.
    fn word(&self, first: u64) -> u64 {
        self.0.get((first / WORD_BITS) as usize).copied().unwrap_or(0)
    }

    /// How many of the bits from one on that is a multiple of 64 are set.
    fn count(&self, range: Range<u64>) -> u64 {
        let words = range.clone().step_by(WORD_BITS as usize).map(|first| {
            let beyond = (first + WORD_BITS).saturating_sub(range.end);
            u64::from((self.word(first) << beyond).count_ones())
        });
        words.sum()
    }

    /// The first bit of a range that is clear.
    fn next_clear(&self, range: Range<u64>) -> Option<u64> {
        let mut at = range.start;
        while at < range.end {
            let (word, first) = ((at / WORD_BITS) as usize, at % WORD_BITS);
            let clear = !self.0[word] >> first;
            if clear != 0 {
                return Some(at + u64::from(clear.trailing_zeros())).filter(|bit| *bit < range.end);
            }
            at += WORD_BITS - first;
        }
        None
    }
}

/// A refcount block.
pub(super) struct Block {
    /// Its own cluster.
    pub cluster: u64,
    /// The clusters with a refcount, by their number among those that it counts (S4).
    pub counted: Bitmap,
}

/// What a commit writes of refcounts.
#[derive(Default)]
pub(super) struct Due {
    /// Whether the clusters are used.
    pub counts: BTreeMap<u64, bool>,
    /// The numbers of blocks that are not on the disk.
    pub blocks: BTreeSet<usize>,
    /// Of blocks that are, and that the refcount table may not name.
    pub unnamed_blocks: BTreeSet<usize>,
}

impl Due {
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty() && self.blocks.is_empty() && self.unnamed_blocks.is_empty()
    }
}

/// See the module's description.
pub(super) struct Space {
    /// The byte where the refcount table begins.
    table: u64,
    cluster_bytes: u64,
    refcount_bits: u32,
    /// Clusters of the image that exist and can be counted.
    capacity: u64,
    used: Bitmap,
    used_count: u64,
    /// By their number; as many as the refcount table has entries.
    blocks: Vec<Option<Block>>,
    due: Due,
    /// Where the next search begins.
    cursor: u64,
}

impl Space {
    /// An image without clusters, whose refcount table begins at a byte and has so many entries.
    pub fn new(
        (cluster_bytes, refcount_bits): (u64, u32),
        (table, entries): (u64, usize),
    ) -> Space {
        Space {
            table,
            cluster_bytes,
            refcount_bits,
            capacity: 0,
            used: Bitmap::default(),
            used_count: 0,
            blocks: (0..entries).map(|_| None).collect(),
            due: Due::default(),
            cursor: 0,
        }
    }

    /// The byte where the refcount table begins.
    pub fn table(&self) -> u64 {
        self.table
    }

    /// How many clusters a block counts.
    pub fn per_block(&self) -> u64 {
        per_block(self.cluster_bytes, self.refcount_bits)
    }

    /// How many clusters the refcount table can count.
    pub fn coverage(&self) -> u64 {
        self.blocks.len() as u64 * self.per_block()
    }

    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Clusters that are used.
    pub fn used(&self) -> u64 {
        self.used_count
    }

    /// The image has so many clusters now.
    pub fn extend(&mut self, clusters: u64) {
        let clusters = clusters.min(self.coverage());
        if clusters > self.capacity {
            self.capacity = clusters;
            self.used.0.resize(clusters.div_ceil(WORD_BITS) as usize, 0);
        }
    }

    /// The image has no more clusters than this. False if others are used.
    pub fn cut(&mut self, clusters: u64) -> bool {
        let has_used = (clusters..self.capacity).any(|cluster| self.used.is_set(cluster));
        if !has_used {
            self.capacity = self.capacity.min(clusters);
        }
        !has_used
    }

    /// A block as it is on the disk.
    pub fn put_block(&mut self, number: usize, block: Block) {
        self.blocks[number] = Some(block);
    }

    pub fn block(&self, number: usize) -> Option<&Block> {
        self.blocks.get(number).and_then(Option::as_ref)
    }

    fn is_counted(&self, cluster: u64) -> bool {
        let (number, index) = self.place_of(cluster);
        self.block(number).is_some_and(|block| block.counted.is_set(index))
    }

    /// The number of the block that counts a cluster, and the cluster's number there.
    pub fn place_of(&self, cluster: u64) -> (usize, u64) {
        ((cluster / self.per_block()) as usize, cluster % self.per_block())
    }

    /// While the image is read: a cluster with a reference. False if there is no such cluster, or
    /// for the second time.
    pub fn claim(&mut self, cluster: u64) -> bool {
        let is_free = cluster < self.capacity && !self.used.is_set(cluster);
        if is_free {
            self.take(cluster);
        }
        is_free
    }

    fn take(&mut self, cluster: u64) {
        self.used.put(cluster, true);
        self.used_count += 1;
    }

    /// After all references were claimed: refcounts without a reference are leaks, and due. Those
    /// beyond the first are free all the same, and are found again at the next start.
    pub fn find_leaks(&mut self) {
        let mut leaks = Vec::new();
        for (number, block) in self.blocks.iter().enumerate() {
            let Some(block) = block else { continue };
            let first = number as u64 * self.per_block();
            let end = (first + self.per_block()).min(self.capacity);
            for at in (first..end).step_by(WORD_BITS as usize) {
                let mut leaked = block.counted.word(at - first) & !self.used.word(at);
                while leaked != 0 && leaks.len() < LEAKS_MAX {
                    leaks.push(at + u64::from(leaked.trailing_zeros()));
                    leaked &= leaked - 1;
                }
            }
        }
        self.due.counts.extend(leaks.into_iter().map(|cluster| (cluster, false)));
    }

    /// Allocates at most so many consecutive clusters, none if there are none.
    pub fn allocate(&mut self, most: u64) -> Option<Range<u64>> {
        loop {
            let (from, to) = (self.cursor, self.capacity);
            let found = self.used.next_clear(from..to);
            let first = found.or_else(|| self.used.next_clear(0..from))?;
            let (number, _) = self.place_of(first);
            if self.blocks[number].is_none() {
                // S3
                self.add_block(number, first);
                continue;
            }
            let end = self.capacity.min(first + most).min((number as u64 + 1) * self.per_block());
            let taken = (first..end).take_while(|cluster| !self.used.is_set(*cluster)).count();
            let run = first..first + taken as u64;
            run.clone().for_each(|cluster| self.use_new(cluster));
            return Some(run);
        }
    }

    /// Allocates so many consecutive clusters, or none.
    pub fn allocate_whole(&mut self, count: u64) -> Option<Range<u64>> {
        let mut first = self.used.next_clear(0..self.capacity)?;
        loop {
            let end = first + count;
            if end > self.capacity {
                return None;
            }
            let Some(used) = (first..end).find(|cluster| self.used.is_set(*cluster)) else { break };
            first = self.used.next_clear(used..self.capacity)?;
        }
        let run = first..first + count;
        run.clone().for_each(|cluster| self.use_new(cluster));
        if !self.add_blocks() {
            run.for_each(|cluster| self.release(cluster));
            return None;
        }
        Some(run)
    }

    /// The refcount table is at another byte now, with more entries. Its old clusters are free.
    pub fn move_table(&mut self, table: u64, entries: usize) {
        let old = self.table / self.cluster_bytes;
        let clusters = (self.blocks.len() as u64 * 8).div_ceil(self.cluster_bytes);
        self.table = table;
        self.blocks.resize_with(entries, || None);
        (old..old + clusters).for_each(|cluster| self.release(cluster));
    }

    fn use_new(&mut self, cluster: u64) {
        self.take(cluster);
        self.due.counts.insert(cluster, true);
        self.cursor = cluster + 1;
    }

    /// Takes a cluster that a record of a killed process names. False if it is not free.
    /// [`Space::add_blocks`] follows.
    pub fn take_named(&mut self, cluster: u64) -> bool {
        let is_free = cluster < self.capacity && !self.used.is_set(cluster);
        if is_free {
            self.take(cluster);
            self.due.counts.insert(cluster, true);
        }
        is_free
    }

    /// Makes blocks for clusters that were taken and have none (S3). False if there is no space.
    pub fn add_blocks(&mut self) -> bool {
        let mut numbers: BTreeSet<usize> = BTreeSet::new();
        numbers.extend(self.due.counts.keys().map(|cluster| self.place_of(*cluster).0));
        for number in numbers {
            while self.blocks[number].is_none() {
                let Some(free) = self.used.next_clear(0..self.capacity) else { return false };
                let (own, _) = self.place_of(free);
                let number = if self.blocks[own].is_none() { own } else { number };
                self.add_block(number, free);
            }
        }
        true
    }

    fn add_block(&mut self, number: usize, cluster: u64) {
        self.blocks[number] = Some(Block { cluster, counted: Bitmap::new(self.per_block()) });
        self.due.blocks.insert(number);
        self.use_new(cluster);
    }

    /// A cluster is not used any more (S1).
    pub fn release(&mut self, cluster: u64) {
        assert!(self.used.is_set(cluster), "S1: a cluster is released once");
        self.used.put(cluster, false);
        self.used_count -= 1;
        match self.is_counted(cluster) {
            true => _ = self.due.counts.insert(cluster, false),
            // No commit has written its refcount.
            false => _ = self.due.counts.remove(&cluster),
        }
        self.cursor = self.cursor.min(cluster);
    }

    /// New blocks that count no cluster but their own are given up.
    pub fn drop_unneeded_blocks(&mut self) {
        for number in self.due.blocks.clone() {
            let own = self.block(number).map_or(0, |block| block.cluster);
            let first = number as u64 * self.per_block();
            let clusters = first..(first + self.per_block()).min(self.capacity);
            if clusters.contains(&own) && self.used.count(clusters.clone()) == 1 {
                self.due.blocks.remove(&number);
                self.due.counts.retain(|cluster, _| !clusters.contains(cluster));
                self.blocks[number] = None;
                self.used.put(own, false);
                self.used_count -= 1;
            }
        }
    }

    /// True if no refcount has to be written.
    pub fn is_settled(&self) -> bool {
        self.due.is_empty()
    }

    /// What is due, for a commit, which the blocks say now (S4).
    pub fn take_due(&mut self) -> Due {
        let due = std::mem::take(&mut self.due);
        for (cluster, is_used) in &due.counts {
            let (number, index) = self.place_of(*cluster);
            let block = self.blocks[number].as_mut().expect("S3: a cluster has its block");
            block.counted.put(index, *is_used);
        }
        due
    }

    /// A commit has failed: it is due again, but for what was decided since.
    pub fn give_back(&mut self, due: Due) {
        for (cluster, is_used) in due.counts {
            self.due.counts.entry(cluster).or_insert(is_used);
        }
        self.due.blocks.extend(due.blocks);
        self.due.unnamed_blocks.extend(due.unnamed_blocks);
    }

    /// The bytes of a part of a block.
    pub fn bytes_of_block(&self, number: usize, bytes: Range<usize>) -> Vec<u8> {
        let mut out = vec![0; bytes.len()];
        let per_byte = |byte: usize| byte as u64 * 8 / u64::from(self.refcount_bits);
        let first = per_byte(bytes.start);
        if let Some(block) = self.block(number) {
            for index in first..per_byte(bytes.end) {
                if block.counted.is_set(index) {
                    set_refcount(&mut out, self.refcount_bits, (index - first) as usize, 1);
                }
            }
        }
        out
    }

    /// Which byte of its block has the refcount of a cluster.
    pub fn byte_in_block(&self, cluster: u64) -> usize {
        let (_, index) = self.place_of(cluster);
        (index * u64::from(self.refcount_bits) / 8) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Blocks of 64 clusters, two of them; the first one is on the disk.
    fn space(capacity: u64) -> Space {
        let mut space = Space::new((128, 16), (128, 2));
        space.extend(capacity);
        let mut counted = Bitmap::new(64);
        (0..3).for_each(|cluster| counted.put(cluster, true));
        space.put_block(0, Block { cluster: 1, counted });
        assert!(space.claim(0) && space.claim(1));
        space
    }

    #[test]
    fn a_cluster_with_a_refcount_and_no_reference_is_a_leak() {
        let mut space = space(40);
        assert!(!space.claim(1), "a second reference");
        assert!(!space.claim(40), "no such cluster");
        space.find_leaks();
        assert_eq!(space.take_due().counts, BTreeMap::from([(2, false)]));
        assert_eq!(space.bytes_of_block(0, 0..8), [0, 1, 0, 1, 0, 0, 0, 0]);
    }

    #[test]
    fn the_first_cluster_beyond_the_last_block_becomes_the_next_one() {
        let mut space = space(128);
        assert_eq!(space.allocate(100), Some(2..64));
        assert_eq!(space.allocate(100), Some(65..128));
        assert_eq!(space.allocate(1), None);
        let due = space.take_due();
        assert_eq!((due.counts.len(), due.blocks), (126, BTreeSet::from([1])));
        assert_eq!(space.block(1).unwrap().cluster, 64);
        assert_eq!(space.bytes_of_block(1, 0..4), [0, 1, 0, 1]);
        space.extend(1000);
        assert_eq!((space.capacity(), space.coverage()), (128, 128));
    }

    proptest! {
        #[test]
        fn what_is_allocated_is_used_once_and_counted_once_it_is_due(
            steps in prop::collection::vec((0..4_u8, 0..40_u64), 1..60),
        ) {
            let mut space = space(128);
            let mut used: BTreeSet<u64> = BTreeSet::new();
            for (step, number) in steps {
                match step {
                    0 | 1 => {
                        for cluster in space.allocate(number % 5 + 1).into_iter().flatten() {
                            prop_assert!(used.insert(cluster), "{cluster}");
                        }
                    }
                    2 => {
                        let released = used.iter().nth(number as usize).copied();
                        if let Some(cluster) = released {
                            used.remove(&cluster);
                            space.release(cluster);
                        }
                    }
                    _ => {
                        let due = space.take_due();
                        if number % 2 == 0 {
                            space.give_back(due);
                        }
                    }
                }
            }
            space.take_due();
            for cluster in (0..128).filter(|cluster| ![0, 1, 2].contains(cluster)) {
                let is_block = space.block(1).is_some_and(|block| block.cluster == cluster);
                prop_assert_eq!(space.is_counted(cluster), used.contains(&cluster) || is_block);
            }
        }
    }
}

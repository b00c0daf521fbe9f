//! A bounded cache of clean, verified tree nodes of the last durable state.
//!
//! Sharded by block number. A shard is a clock (second chance) under a short lock that is never
//! held across an await. A block that a commit writes is replaced here before the commit is
//! published. A block that was read is added only if `valid` still holds under the shard's lock, so
//! that a slow reader of an old state can't put an old block back. A freed block stays here
//! unchanged: no pointer leads to it until a commit writes it again. So a caller that reads a state
//! that was not published clears the cache first.

use std::sync::Arc;

use cairn_block::sync::Mutex;
use cairn_format::thin::{BLOCK_BYTES, Block, MetadataBlock};
use rustc_hash::FxHashMap;

const SHARDS: usize = 16;

struct Slot {
    block: MetadataBlock,
    bytes: Arc<Block>,
    used: bool,
}

#[derive(Default)]
struct Shard {
    places: FxHashMap<MetadataBlock, usize>,
    slots: Vec<Slot>,
    hand: usize,
}

impl Shard {
    fn put(&mut self, slots_max: usize, block: MetadataBlock, bytes: Arc<Block>) {
        let slot = Slot { block, bytes, used: false };
        if let Some(&place) = self.places.get(&block) {
            self.slots[place] = slot;
        } else if self.slots.len() < slots_max {
            self.places.insert(block, self.slots.len());
            self.slots.push(slot);
        } else {
            let place = self.victim();
            self.places.remove(&self.slots[place].block);
            self.places.insert(block, place);
            self.slots[place] = slot;
        }
    }

    /// The next slot that was not used since the hand passed.
    fn victim(&mut self) -> usize {
        loop {
            let place = self.hand;
            self.hand = (self.hand + 1) % self.slots.len();
            if !std::mem::take(&mut self.slots[place].used) {
                return place;
            }
        }
    }
}

/// The cache.
pub(super) struct Cache {
    shards: [Mutex<Shard>; SHARDS],
    slots_max: usize,
}

impl Cache {
    /// A cache of at most `bytes` bytes of blocks, and at least one block per shard.
    pub fn new(bytes: usize) -> Cache {
        let slots_max = (bytes / BLOCK_BYTES / SHARDS).max(1);
        Cache { shards: std::array::from_fn(|_| Mutex::new(Shard::default())), slots_max }
    }

    fn shard(&self, block: MetadataBlock) -> &Mutex<Shard> {
        &self.shards[(block.0 % SHARDS as u64) as usize]
    }

    /// A block, if it is here.
    pub fn get(&self, block: MetadataBlock) -> Option<Arc<Block>> {
        let mut shard = self.shard(block).lock();
        let place = *shard.places.get(&block)?;
        let slot = &mut shard.slots[place];
        slot.used = true;
        Some(slot.bytes.clone())
    }

    /// Adds a block that was read, if `valid` holds.
    pub fn put_if(&self, block: MetadataBlock, bytes: Arc<Block>, valid: impl FnOnce() -> bool) {
        let mut shard = self.shard(block).lock();
        if valid() {
            shard.put(self.slots_max, block, bytes);
        }
    }

    /// Replaces a block by what a commit wrote.
    pub fn put(&self, block: MetadataBlock, bytes: Arc<Block>) {
        self.put_if(block, bytes, || true);
    }

    /// Removes a block.
    pub fn remove(&self, block: MetadataBlock) {
        let mut shard = self.shard(block).lock();
        if let Some(place) = shard.places.remove(&block) {
            shard.slots.swap_remove(place);
            shard.hand = 0;
            if let Some(moved) = shard.slots.get(place).map(|slot| slot.block) {
                shard.places.insert(moved, place);
            }
        }
    }

    /// Removes all blocks.
    pub fn clear(&self) {
        for shard in &self.shards {
            *shard.lock() = Shard::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(fill: u8) -> Arc<Block> {
        Arc::new([fill; BLOCK_BYTES])
    }

    #[test]
    fn the_cache_stays_within_its_bytes_and_keeps_what_is_used() {
        let cache = Cache::new(SHARDS * 4 * BLOCK_BYTES);
        for number in 0..1000 {
            cache.put(MetadataBlock(number), block(number as u8));
            assert!(cache.get(MetadataBlock(0)).is_some(), "block 0 is asked for all the time");
        }
        let kept = (0..1000).filter(|&number| cache.get(MetadataBlock(number)).is_some());
        assert_eq!(kept.count(), SHARDS * 4);
    }

    #[test]
    fn what_was_read_too_late_stays_outside_and_what_is_written_replaces() {
        let cache = Cache::new(1 << 20);
        cache.put_if(MetadataBlock(5), block(1), || false);
        assert!(cache.get(MetadataBlock(5)).is_none());
        cache.put(MetadataBlock(5), block(1));
        cache.put(MetadataBlock(5), block(2));
        assert_eq!(cache.get(MetadataBlock(5)).unwrap()[0], 2);
        cache.clear();
        assert!(cache.get(MetadataBlock(5)).is_none());
    }
}

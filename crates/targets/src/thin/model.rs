//! The naive twin of a pool: for each volume a map from sector to contents, for a client that does
//! one thing after the other.
//!
//! It knows nothing of blocks that are shared, commits or space, but that discards are about whole
//! blocks. Sectors of a write that failed are loose: they hold the old or the new content.

use std::collections::BTreeMap;

/// What a sector may hold; contents are named by one byte that fills a sector.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sector(Vec<u8>);

/// The volumes by id.
pub(super) struct Model {
    block: u64,
    volumes: BTreeMap<u32, Vec<Sector>>,
}

impl Model {
    /// No volumes, over blocks of so many sectors.
    pub fn new(block: u64) -> Model {
        Model { block, volumes: BTreeMap::new() }
    }

    /// A new volume of zeros.
    pub fn create(&mut self, id: u32, sectors: u64) {
        self.volumes.insert(id, vec![Sector(vec![0]); sectors as usize]);
    }

    /// A snapshot.
    pub fn snapshot(&mut self, id: u32, origin: u32) {
        let copy = self.volumes[&origin].clone();
        self.volumes.insert(id, copy);
    }

    /// The volume is gone.
    pub fn delete(&mut self, id: u32) {
        self.volumes.remove(&id);
    }

    /// The volumes.
    pub fn ids(&self) -> Vec<u32> {
        self.volumes.keys().copied().collect()
    }

    fn sectors(&mut self, id: u32, start: u64, count: u64) -> &mut [Sector] {
        let volume = self.volumes.get_mut(&id).expect("a volume of the model");
        &mut volume[start as usize..(start + count) as usize]
    }

    /// A write (or write-zeroes) that ended; one that failed may have been done in part.
    pub fn write(&mut self, id: u32, start: u64, count: u64, byte: u8, ok: bool) {
        for sector in self.sectors(id, start, count) {
            if ok {
                sector.0.clear();
            }
            sector.0.push(byte);
        }
    }

    /// A discard that ended: whole blocks read as zeros.
    pub fn discard(&mut self, id: u32, start: u64, count: u64, ok: bool) {
        let first = start.div_ceil(self.block) * self.block;
        let end = (start + count) / self.block * self.block;
        if first < end {
            self.write(id, first, end - first, 0, ok);
        }
    }

    /// What was read, one byte per sector: from now on it holds exactly this.
    ///
    /// # Panics
    /// A sector holds what it must not.
    pub fn read(&mut self, id: u32, start: u64, bytes: &[u8]) {
        for ((at, byte), sector) in
            (start..).zip(bytes).zip(self.sectors(id, start, bytes.len() as u64))
        {
            assert!(
                sector.0.contains(byte),
                "volume {id}, sector {at}: {byte}, expected {sector:?}"
            );
            sector.0 = vec![*byte];
        }
    }
}

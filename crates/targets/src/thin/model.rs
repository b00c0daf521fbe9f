//! The reference model of a pool: for each volume a map from sector to contents, for a client that
//! has one request in flight at a time.
//!
//! The model knows nothing of shared blocks, commits or space. It knows that discards affect whole
//! blocks, and the content of unwritten sectors. Sectors of a failed write are undetermined: they
//! hold the old or the new content.

use std::collections::BTreeMap;

/// What a sector may hold; contents are named by one byte that fills a sector.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Sector(Vec<u8>);

/// The volumes by id.
pub(super) struct Model {
    block: u64,
    /// The external origin of every volume; zeros after its end.
    origin: Vec<u8>,
    volumes: BTreeMap<u32, Vec<Sector>>,
}

impl Model {
    /// No volumes, over blocks of so many sectors and an external origin, if only an empty one.
    pub fn new(block: u64, origin: Vec<u8>) -> Model {
        Model { block, origin, volumes: BTreeMap::new() }
    }

    /// What a sector shows that was never written.
    fn bare(&self, sector: u64) -> u8 {
        self.origin.get(sector as usize).copied().unwrap_or(0)
    }

    /// A new volume.
    pub fn create(&mut self, id: u32, sectors: u64) {
        let volume = (0..sectors).map(|sector| Sector(vec![self.bare(sector)])).collect();
        self.volumes.insert(id, volume);
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

    /// A discard that ended: whole blocks are as if they had never been written.
    pub fn discard(&mut self, id: u32, start: u64, count: u64, ok: bool) {
        let first = start.div_ceil(self.block) * self.block;
        let end = (start + count) / self.block * self.block;
        for sector in first..end {
            self.write(id, sector, 1, self.bare(sector), ok);
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

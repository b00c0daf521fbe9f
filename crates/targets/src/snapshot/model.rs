//! The reference model: a snapshot is a copy of everything, made at once. For a client that has one
//! request in flight at a time; each sector is filled with one byte.

/// An origin and up to three snapshots.
pub(super) struct Model {
    origin: Vec<u8>,
    snapshots: [Option<Vec<u8>>; 3],
}

impl Model {
    /// An origin without snapshots.
    pub fn new(origin: Vec<u8>) -> Model {
        Model { origin, snapshots: [None, None, None] }
    }

    /// Takes a snapshot.
    pub fn create(&mut self, which: usize) {
        self.snapshots[which] = Some(self.origin.clone());
    }

    pub fn remove(&mut self, which: usize) {
        self.snapshots[which] = None;
    }

    /// The origin becomes what the snapshot is.
    pub fn merge(&mut self, which: usize) {
        self.origin = self.snapshots[which].clone().expect("it was created");
    }

    /// Writes a snapshot, or the origin.
    pub fn write(&mut self, which: Option<usize>, start: u64, count: u64, byte: u8) {
        let volume = match which {
            Some(which) => self.snapshots[which].as_mut().expect("it was created"),
            None => &mut self.origin,
        };
        volume[start as usize..(start + count) as usize].fill(byte);
    }

    pub fn content(&self, which: Option<usize>) -> Vec<u8> {
        match which {
            Some(which) => self.snapshots[which].clone().expect("it was created"),
            None => self.origin.clone(),
        }
    }
}

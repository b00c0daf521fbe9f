//! A batch: which dirty extents, and their copies in merged writes.

use std::cell::Cell;
use std::time::Duration;

use cairn_block::{CopyPiece, Env, Flags, IoError, IoResult, Sector, SectorCount, SectorRange};
use cairn_format::bcache::Key;
use futures_util::stream::{self, StreamExt};

use crate::bcache::volume::Bcache;

/// A batch has at most so many keys, and so many sectors, and is sealed after this time.
const BATCH_KEYS: usize = 20_000;
const BATCH_SECTORS: u64 = (256 << 20) / 512;
const BATCH_TIME: Duration = Duration::from_secs(2);
/// The longest write.
const WRITE_SECTORS: u64 = (1 << 20) / 512;
/// Memory of the copies in flight.
pub(in super::super) const COPY_BYTES: u64 = 32 << 20;
/// How many copies are read ahead, and how many are written at once.
const IN_FLIGHT: usize = 32;

/// Keys that follow each other on the backing device: one write.
struct Run {
    keys: Vec<Key>,
}

impl Run {
    fn start(&self) -> u64 {
        self.keys[0].start()
    }

    fn end(&self) -> u64 {
        self.keys[self.keys.len() - 1].end()
    }

    fn range(&self) -> SectorRange {
        SectorRange::between(Sector(self.start()), Sector(self.end()))
    }
}

/// Puts keys that follow each other together.
fn runs_of(keys: Vec<Key>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for key in keys {
        match runs.last_mut() {
            Some(run) if run.end() == key.start() && key.end() - run.start() <= WRITE_SECTORS => {
                run.keys.push(key);
            }
            _ => runs.push(Run { keys: vec![key] }),
        }
    }
    runs
}

impl Bcache {
    /// The next dirty extents from a sector on, in order: a batch at most.
    pub(super) fn next_dirty(&self, from: u64) -> Vec<Key> {
        let set = self.set.lock();
        let Some(set) = set.as_ref() else { return Vec::new() };
        let mut sectors = 0;
        let dirty = set.tree.extents_from(self.inode(), from).filter(|key| key.is_dirty());
        dirty
            .take(BATCH_KEYS)
            .take_while(|key| {
                sectors += key.sectors();
                sectors <= BATCH_SECTORS.max(key.sectors())
            })
            .copied()
            .collect()
    }

    /// Copies keys to the backing device, in order, until the time of a batch is over or a suspend
    /// begins. Answers which were copied.
    ///
    /// # Errors
    /// A copy failed. None is in flight any more.
    pub(super) async fn copy_keys(&self, env: &Env, keys: Vec<Key>) -> Result<Vec<Key>, IoError> {
        let [cache, backing] = self.copied_between();
        let end = env.now() + BATCH_TIME;
        let failed = Cell::new(None);
        let is_open = |_: &Run| failed.get().is_none() && env.now() < end && !self.is_suspending();
        let read = async |run: Run| {
            let piece = |key: &Key| CopyPiece { disk: cache.clone(), range: place_of(key) };
            let pieces: Vec<CopyPiece> = run.keys.iter().map(piece).collect();
            let grant = self.copier.grant((run.end() - run.start()) * 512).await;
            (run, grant.read(env, &pieces).await)
        };
        let write = async |(run, data): (Run, Result<cairn_block::CopyData<'_>, IoError>)| {
            let written: IoResult = match data {
                Ok(data) => data.write(env, &backing, run.range(), Flags::empty()).await,
                Err(error) => Err(error),
            };
            if let Err(error) = written {
                failed.set(failed.get().or(Some(error)));
            }
            run.keys
        };
        let open = runs_of(keys).into_iter().take_while(is_open);
        let reads = stream::iter(open).map(read).buffered(IN_FLIGHT);
        let written: Vec<Vec<Key>> = reads.map(write).buffered(IN_FLIGHT).collect().await;
        failed.get().map_or(Ok(written.concat()), Err)
    }
}

/// Where the data of an extent lies in the cache.
fn place_of(key: &Key) -> SectorRange {
    let pointer = key.cached_at().expect("an extent leads somewhere");
    SectorRange::new(Sector(pointer.sector()), SectorCount(key.sectors()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_format::bcache::{Generation, Pointer};

    #[test]
    fn extents_that_touch_are_one_write_of_a_mebibyte_at_most() {
        let key = |start: u64, sectors: u64| {
            let pointer = Pointer::new(start % 7 * 4096, Generation(0));
            Key::new(0, start + sectors, sectors).at(pointer)
        };
        let keys = vec![key(0, 8), key(8, 8), key(17, 8), key(25, 2040), key(2065, 1)];
        let runs: Vec<_> = runs_of(keys).iter().map(|run| (run.start(), run.end())).collect();
        assert_eq!(runs, [(0, 16), (17, 2065), (2065, 2066)]);
    }
}

//! A batch: which dirty extents, and their copies in merged writes.

use std::cell::Cell;
use std::time::Duration;

use cairn_block::{
    CopyData, CopyPiece, Env, Flags, IoError, IoResult, Sector, SectorCount, SectorRange,
};
use cairn_format::bcache::Key;
use futures_util::stream::{self, StreamExt};

use crate::bcache::volume::Bcache;

/// A batch is full once it has so many keys or so many sectors; then it gets the keys that are one
/// write with its last one as well. It is sealed after this time.
const BATCH_KEYS: usize = 20_000;
const BATCH_SECTORS: u64 = (256 << 20) / 512;
const BATCH_TIME: Duration = Duration::from_secs(2);
/// The longest write.
const WRITE_SECTORS: u64 = (1 << 20) / 512;
/// Memory of the copies in flight.
pub(in super::super) const COPY_BYTES: u64 = 32 << 20;
/// How many copies are read ahead, and how many are written at once.
const IN_FLIGHT: usize = 32;

/// Of keys in order, those that follow each other on the backing device: one write each time.
fn runs_of(mut keys: &[Key]) -> impl Iterator<Item = &[Key]> {
    std::iter::from_fn(move || {
        let first = keys.first()?;
        let goes_on = |pair: &&[Key]| joins(first.start(), pair[0].end(), &pair[1]);
        let length = 1 + keys.windows(2).take_while(goes_on).count();
        let (run, rest) = keys.split_at(length);
        keys = rest;
        Some(run)
    })
}

/// True if a key belongs to the run that begins and ends there.
fn joins(start: u64, end: u64, key: &Key) -> bool {
    key.start() == end && key.end() - start <= WRITE_SECTORS
}

/// What a run is on the backing device.
fn range_of(run: &[Key]) -> SectorRange {
    SectorRange::between(Sector(run[0].start()), Sector(run[run.len() - 1].end()))
}

/// The first of these extents, up to a full batch, plus those that are one write with the last.
fn batch_of<'k>(mut extents: impl Iterator<Item = &'k Key>) -> Vec<Key> {
    let (mut keys, mut sectors) = (Vec::new(), 0);
    while keys.len() < BATCH_KEYS && sectors < BATCH_SECTORS {
        let Some(key) = extents.next() else { return keys };
        sectors += key.sectors();
        keys.push(*key);
    }
    let last = range_of(runs_of(&keys).last().expect("a full batch has keys"));
    let (start, mut end) = (last.start.0, last.end().0);
    let goes_on = |key: &&Key| {
        let joins = joins(start, end, key);
        end = key.end();
        joins
    };
    keys.extend(extents.take_while(goes_on));
    keys
}

impl Bcache {
    /// The next dirty extents from a sector on, in order: one batch.
    pub(super) fn next_dirty(&self, from: u64) -> Vec<Key> {
        let set = self.set.lock();
        let Some(set) = set.as_ref() else { return Vec::new() };
        batch_of(set.tree.extents_from(self.inode(), from).filter(|key| key.is_dirty()))
    }

    /// Copies keys to the backing device, in order, until the time of a batch is over or a suspend
    /// begins. Answers how many were copied.
    ///
    /// # Errors
    /// A copy failed. None is in flight any more.
    pub(super) async fn copy_keys(&self, env: &Env, keys: &[Key]) -> Result<usize, IoError> {
        let [cache, backing] = self.copied_between();
        let end = env.now() + BATCH_TIME;
        let failed = Cell::new(None);
        let is_open =
            |_: &&[Key]| failed.get().is_none() && env.now() < end && !self.is_suspending();
        let read = async |run: &[Key]| {
            let piece = |key: &Key| CopyPiece { disk: cache.clone(), range: place_of(key) };
            let pieces: Vec<CopyPiece> = run.iter().map(piece).collect();
            let range = range_of(run);
            let grant = self.copier.grant(range.to_bytes()).await;
            (run.len(), range, grant.read(env, &pieces).await)
        };
        let write = async |(keys, range, data): (_, _, Result<CopyData<'_>, IoError>)| {
            let written: IoResult = match data {
                Ok(data) => data.write(env, &backing, range, Flags::empty()).await,
                Err(error) => Err(error),
            };
            if let Err(error) = written {
                failed.set(failed.get().or(Some(error)));
            }
            keys
        };
        let open = runs_of(keys).take_while(is_open);
        let reads = stream::iter(open).map(read).buffered(IN_FLIGHT);
        let writes = reads.map(write).buffered(IN_FLIGHT);
        let copied = writes.fold(0, async |all, keys: usize| all + keys).await;
        failed.get().map_or(Ok(copied), Err)
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

    fn key(start: u64, sectors: u64) -> Key {
        let pointer = Pointer::new(start % 7 * 4096, Generation(0));
        Key::new(0, start + sectors, sectors).at(pointer)
    }

    #[test]
    fn extents_that_touch_are_one_write_of_a_mebibyte_at_most() {
        let keys = [key(0, 8), key(8, 8), key(17, 8), key(25, 2040), key(2065, 1)];
        let runs: Vec<_> =
            runs_of(&keys).map(|run| (run[0].start(), range_of(run).count.0)).collect();
        assert_eq!(runs, [(0, 16), (17, 2048), (2065, 1)]);
    }

    #[test]
    fn a_batch_ends_where_a_write_does() {
        let length = |keys: Vec<Key>| batch_of(keys.iter()).len();
        let full = BATCH_KEYS as u64;
        // Apart from each other but for three around the end; all in a row; long ones.
        let end = full * 16 - 16;
        let around = [key(end, 8), key(end + 8, 8), key(end + 16, 8), key(end + 32, 8)];
        assert_eq!(length((0..full - 1).map(|n| key(n * 16, 8)).chain(around).collect()), 20_002);
        assert_eq!(length((0..full * 2).map(|n| key(n * 8, 8)).collect()), 20_224);
        assert_eq!(length((0..9999).map(|n| key(n * 2048, 1024)).collect()), 512);
        assert_eq!(length((0..99).map(|n| key(n * 8, 8)).collect()), 99);
    }
}

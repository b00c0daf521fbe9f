//! A batch: which dirty extents, and their copies in merged writes.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cairn_block::{
    CopyData, CopyError, CopyPiece, Disk, Env, Flags, IoError, IoResult, Sector, SectorCount,
    SectorRange,
};
use cairn_format::bcache::{Key, OFFSET_MAX};
use futures_util::stream::{self, StreamExt};

use super::How;
use super::policy::Shape;
use super::uncopied::Uncopied;
use crate::bcache::btree::{Span, Which};
use crate::bcache::canary::{Bug, planted};
use crate::bcache::flushing::{Covered, Flushing};
use crate::bcache::set::WriteError;
use crate::bcache::stripes::Stripes;
use crate::bcache::volume::Bcache;

/// A batch is full once it has so many sectors, or as many keys as its [`Flushing`] says; then it
/// gets the keys that are one write with its last one as well.
pub(super) const BATCH_SECTORS: u64 = (256 << 20) / 512;
/// It is sealed after this time.
pub(super) const BATCH_TIME: Duration = Flushing::OURS.batch_time[0];
/// A batch that waits for its pace is sealed after this time, or [`BATCH_TIME`] without the waits.
pub(super) const PACED_TIME: Duration = Flushing::OURS.batch_time[1];
/// The longest write.
pub(super) const WRITE_SECTORS: u64 = (1 << 20) / 512;
/// Memory of the copies in flight.
pub(in super::super) const COPY_BYTES: u64 = 32 << 20;
/// After so many extents in a row that failed, a device may be dead: a sample decides.
pub(super) const FAILED_IN_A_ROW: usize = 1000;
/// How many extents a sample has at most.
const SAMPLE: usize = 32;

/// How the copies of a batch ended.
pub(super) struct Copied {
    /// The extents that were copied, in order.
    pub written: Vec<Key>,
    /// The extents that failed, in order.
    pub failed: Vec<Uncopied>,
    /// The extents that were not tried.
    pub untried: Vec<Key>,
    /// How many extents failed after the last one that was copied.
    pub failed_in_a_row: usize,
}

impl Copied {
    fn new() -> Copied {
        let (written, untried) = (Vec::new(), Vec::new());
        Copied { written, failed: Vec::new(), untried, failed_in_a_row: 0 }
    }
}

/// Copies that begin as soon as possible.
const AT_ONCE: How<'static> = How {
    ends: &|| false,
    is_paced: false,
    time: BATCH_TIME,
    paced_time: PACED_TIME,
    shape: Shape::MERGED,
};

/// When copies of a batch begin.
struct Pace<'e> {
    how: How<'e>,
    /// The time that it took to wait for that.
    waited: Cell<Duration>,
    /// The extents that follow each other and have waited once: how many, and their sectors.
    row: Cell<(usize, u64)>,
    /// Where the last of them ends.
    end: Cell<u64>,
}

impl<'e> Pace<'e> {
    fn new(how: How<'e>) -> Pace<'e> {
        let (row, end) = (Cell::new((usize::MAX, 0)), Cell::new(0));
        Pace { how, waited: Cell::new(Duration::ZERO), row, end }
    }

    /// How long the batch may take until now.
    fn time_of_batch(&self) -> Duration {
        (self.how.time + self.waited.get()).min(self.how.paced_time)
    }

    /// Waits until a run may be copied. False if the batch ends before.
    async fn admit(&self, volume: &Bcache, env: &Env, run: &[Key]) -> bool {
        if !self.how.is_paced {
            return true;
        }
        let (began, range) = (env.now(), range_of(run));
        let ((keys, sectors), shape) = (self.row.get(), self.how.shape);
        let is_in_row =
            keys < shape.row_keys && sectors < shape.row_sectors && range.start.0 == self.end.get();
        let (keys, sectors) = if is_in_row { (keys, sectors) } else { (0, 0) };
        self.row.set((keys + run.len(), sectors + range.count.0));
        self.end.set(range.end().0);
        let is_admitted = match is_in_row {
            true => volume.take_turn(env, range.count.0, self.how.ends),
            false => volume.wait_for_turn(env, range.count.0, self.how.ends).await,
        };
        self.waited.set(self.waited.get() + env.now().since(began));
        is_admitted
    }
}

/// Of keys in order, those that follow each other on the backing device, up to so many sectors: one
/// write each time.
fn runs_of(mut keys: &[Key], most: Most) -> impl Iterator<Item = &[Key]> {
    std::iter::from_fn(move || {
        let first = keys.first()?;
        let goes_on = |pair: &&[Key]| joins(first.start(), pair[0].end(), &pair[1], most);
        let length = 1 + keys.windows(2).take_while(goes_on).count();
        let (run, rest) = keys.split_at(length);
        keys = rest;
        Some(run)
    })
}

/// How long a run is at most.
#[derive(Clone, Copy, Debug)]
struct Most {
    sectors: u64,
    /// It crosses no multiple of so many sectors: whole stripes of a device with parity; 0: any.
    multiple: u64,
}

impl Most {
    /// Stripes have so many sectors; 0 if their parts are not expensive.
    fn new(sectors: u64, stripe: u64) -> Most {
        Most { sectors, multiple: sectors.checked_div(stripe).unwrap_or(0) * stripe }
    }
}

/// True if a key belongs to the run that begins and ends there.
fn joins(start: u64, end: u64, key: &Key, most: Most) -> bool {
    let next = start.checked_div(most.multiple).map_or(u64::MAX, |at| (at + 1) * most.multiple);
    key.start() == end && key.end() - start <= most.sectors && key.end() <= next
}

/// What a run is on the backing device.
fn range_of(run: &[Key]) -> SectorRange {
    SectorRange::between(Sector(run[0].start()), Sector(run[run.len() - 1].end()))
}

/// A batch that is being gathered: dirty extents in order, until it is full, plus those that are
/// one write with the last.
struct Gathering {
    keys: Vec<Key>,
    sectors: u64,
    most: u64,
    most_keys: usize,
    write: Most,
    /// What the last write has, once the batch is full.
    last: Option<SectorRange>,
}

impl Gathering {
    /// Of about `most` sectors and `most_keys` keys at most, in writes like `write`.
    fn new(most: u64, most_keys: usize, write: Most) -> Gathering {
        let (keys, most) = (Vec::new(), most.min(BATCH_SECTORS));
        Gathering { keys, sectors: 0, most, most_keys, write, last: None }
    }

    /// Takes the next extent. False if the batch ends before it.
    fn take(&mut self, key: &Key) -> bool {
        let is_full = self.keys.len() >= self.most_keys || self.sectors >= self.most;
        if is_full {
            let keys = &self.keys[..];
            let last = self.last.get_or_insert_with(|| {
                range_of(runs_of(keys, self.write).last().expect("a full batch has keys"))
            });
            let (start, end) = (last.start.0, last.end().0);
            if !joins(start, end, key, self.write) {
                return false;
            }
            *last = SectorRange::between(last.start, Sector(key.end()));
        }
        self.sectors += key.sectors();
        self.keys.push(*key);
        true
    }
}

/// Those extents that share no sector with another, in their order, and the others. They were
/// found under several locks, so a client may have replaced one by another in between.
pub(super) fn apart(keys: Vec<Key>) -> (Vec<Key>, Vec<Key>) {
    let mut ranges: Vec<(u64, u64)> = keys.iter().map(|key| (key.start(), key.end())).collect();
    ranges.sort_unstable();
    let mut shared: Vec<(u64, u64)> = Vec::new();
    let mut last = (0, 0);
    for (start, end) in ranges {
        if start >= last.1 {
            last = (start, end);
            continue;
        }
        last.1 = last.1.max(end);
        match shared.last_mut().filter(|range| range.0 == last.0) {
            Some(range) => *range = last,
            None => shared.push(last),
        }
    }
    let is_apart = |key: &Key| {
        let before = shared.partition_point(|range| range.0 <= key.start());
        shared[..before].last().is_none_or(|range| key.start() >= range.1)
    };
    match shared.is_empty() {
        true => (keys, Vec::new()),
        false => keys.into_iter().partition(is_apart),
    }
}

impl Bcache {
    /// The next dirty extents from a sector on, in order: one batch, of about `most` sectors at
    /// most, which is not 0.
    pub(super) async fn next_dirty(&self, env: &Env, from: u64, most: u64) -> Vec<Key> {
        let most_keys = self.config.flushing.batch_keys;
        let mut gathering = Gathering::new(most, most_keys, self.most_of(WRITE_SECTORS));
        let own = |key: &Key| !self.is_written(key);
        self.each_dirty(env, from, |key| !own(key) || gathering.take(key)).await;
        gathering.keys
    }

    /// Looks at the dirty extents from a sector on, in order, some at a time, until `look` answers
    /// false, or the set is broken.
    async fn each_dirty(&self, env: &Env, from: u64, mut look: impl FnMut(&Key) -> bool) {
        let Some(core) = &self.core else { return };
        let (from, upto) = ((self.inode(), from), (self.inode(), OFFSET_MAX));
        let mut look = |key: &Key| !key.is_dirty() || look(key);
        // What was found before it broke is not written: the batch sees that it is.
        let _ = core.scan(env, from, upto, Which::Dirty, &mut look).await;
    }

    fn most_of(&self, sectors: u64) -> Most {
        Most::new(sectors, self.stripes.as_ref().map_or(0, Stripes::expensive_size))
    }

    /// True if a client writes to the backing device where an extent is (A2).
    pub(super) fn is_written(&self, key: &Key) -> bool {
        self.traffic.overlaps(&Span::of(key)) && !planted(Bug::CopyOverWrite)
    }

    /// Dirty extents from a sector on, at even distances.
    async fn dirty_sample(&self, env: &Env, from: u64) -> Vec<Key> {
        let own = |key: &Key| !self.traffic.overlaps(&Span::of(key));
        let (mut count, mut index, mut sample) = (0_usize, 0, Vec::new());
        self.each_dirty(env, from, |key| {
            count += usize::from(own(key));
            true
        })
        .await;
        let distance = count.div_ceil(SAMPLE).max(1);
        self.each_dirty(env, from, |key| {
            if own(key) {
                if index % distance == 0 {
                    sample.push(*key);
                }
                index += 1;
            }
            sample.len() < SAMPLE
        })
        .await;
        sample
    }

    /// Copies keys to the backing device, in order, until the time of a batch is over, it is to end
    /// early, or [`FAILED_IN_A_ROW`] extents in a row have failed. Each extent of a write that
    /// failed, or of which a part could not be read, is tried again by itself. No copy is in flight
    /// at the end.
    pub(super) async fn copy_keys(&self, env: &Env, keys: &[Key], how: How<'_>) -> Copied {
        let (began, pace) = (env.now(), Pace::new(how));
        let in_a_row = Cell::new(0);
        let is_open = || in_a_row.get() < FAILED_IN_A_ROW && !(how.ends)();
        let mut tried = Vec::new();
        let mut count = 0;
        for buffer in keys.chunks(how.shape.buffer_keys) {
            let runs = runs_of(buffer, self.most_of(how.shape.merged_sectors))
                .take_while(|_| env.now().since(began) < pace.time_of_batch() && is_open());
            let ended = self.copy_runs(env, runs, &in_a_row, &pace).await;
            let keys_ended: usize = ended.iter().map(|(run, _)| run.len()).sum();
            tried.extend(ended);
            count += keys_ended;
            if keys_ended < buffer.len() {
                break;
            }
        }
        let mut copied = Copied { untried: keys[count..].to_vec(), ..Copied::new() };
        let is_copied = |(_, result): &(_, Result<_, _>)| result.is_ok();
        let (whole, failed): (Vec<_>, Vec<_>) = tried.into_iter().partition(is_copied);
        copied.written.extend(whole.into_iter().flat_map(|(run, _)| run));
        if failed.is_empty() {
            return copied;
        }
        in_a_row.set(0);
        let again: Vec<&[Key]> = failed.into_iter().flat_map(|(run, _)| run.chunks(1)).collect();
        let singles = again.iter().copied().take_while(|_| is_open());
        let tried = self.copy_runs(env, singles, &in_a_row, &Pace::new(AT_ONCE)).await;
        copied.untried.extend(again[tried.len()..].iter().map(|one| one[0]));
        for (one, result) in tried {
            match result {
                Ok(()) => copied.written.push(one[0]),
                Err(error) => copied.failed.push(Uncopied { key: one[0], error }),
            }
        }
        copied.written.sort_unstable_by_key(Key::start);
        copied.failed_in_a_row = in_a_row.get();
        copied
    }

    /// True if a device is to be taken for dead: of the dirty extents from a sector on, none of a
    /// sample can be copied. False if there are none. The caller has the turn of batches: a sample
    /// is a batch that makes nothing clean (N3, R6, R7).
    ///
    /// # Errors
    /// The set cannot be written.
    pub(super) async fn is_sample_lost(&self, env: &Env, from: u64) -> Result<bool, WriteError> {
        let core = self.core.as_ref().expect("a cache is drained");
        let (sample, _) = apart(self.dirty_sample(env, from).await);
        let taken = core.take_out(sample).await;
        core.commit(env).await.map_err(WriteError::Cache)?;
        let (failed, pace) = (Cell::new(0), Pace::new(AT_ONCE));
        let tried = self.copy_runs(env, taken.keys.chunks(1), &failed, &pace).await;
        Ok(!tried.is_empty() && tried.iter().all(|(_, result)| result.is_err()))
    }

    /// Writes a run that was read, if the origin is still this cache's.
    async fn write_run(
        &self,
        env: &Env,
        data: CopyData<'_>,
        (backing, range): (&Arc<dyn Disk>, SectorRange),
        flags: Flags,
    ) -> IoResult {
        self.look_at_marker(env).await?;
        let began = env.now();
        let written = data.write(env, backing, range, flags).await;
        self.throttle.prices.lock().wrote(range, began, env.now());
        written
    }

    /// Copies runs, some at once. Answers in order how each ended. `failed_in_a_row` counts the
    /// extents of runs that failed since the last one that did not.
    async fn copy_runs<'k>(
        &self,
        env: &Env,
        runs: impl Iterator<Item = &'k [Key]>,
        failed_in_a_row: &Cell<usize>,
        pace: &Pace<'_>,
    ) -> Vec<(&'k [Key], Result<(), CopyError>)> {
        let [cache, backing] = self.copied_between();
        let read = async |(place, run): (usize, &'k [Key])| {
            let piece = |range| CopyPiece { disk: cache.clone(), range };
            let pieces: Vec<CopyPiece> = places_of(run).into_iter().map(piece).collect();
            let grant = self.copier.grant(range_of(run).to_bytes()).await;
            (place, run, grant.read(env, &pieces).await)
        };
        let flags = match self.config.flushing.covered {
            Covered::ByFua => Flags::FUA,
            Covered::ByFlush | Covered::Nothing => Flags::empty(),
        };
        type Read<'k, 'c> = (usize, &'k [Key], Result<CopyData<'c>, IoError>);
        let write = async |(place, run, data): Read<'k, '_>| {
            let result = match data {
                Ok(data) => {
                    let written = self.write_run(env, data, (&backing, range_of(run)), flags).await;
                    written.map_err(CopyError::Write)
                }
                Err(error) => Err(CopyError::Read(error)),
            };
            failed_in_a_row.set(match result {
                Ok(()) => {
                    let sectors = range_of(run).count.0;
                    self.sectors_written_back.fetch_add(sectors, Ordering::Relaxed);
                    0
                }
                Err(_) => failed_in_a_row.get() + run.len(),
            });
            (place, (run, result))
        };
        let admitted = stream::unfold(runs.enumerate(), async |mut runs| {
            let (place, run) = runs.next()?;
            pace.admit(self, env, run).await.then_some(((place, run), runs))
        });
        let Shape { in_flight: [in_flight, without_arm], is_ordered, .. } = pace.how.shape;
        let has_arm = self.throttle.prices.lock().have_arm();
        let in_flight = if has_arm { in_flight } else { without_arm };
        let mut ended: Vec<(usize, _)> = match is_ordered {
            true => {
                let reads = admitted.map(read).buffered(in_flight);
                reads.map(write).buffer_unordered(in_flight).collect().await
            }
            false => {
                let copy = async |run| write(read(run).await).await;
                admitted.map(copy).buffer_unordered(in_flight).collect().await
            }
        };
        ended.sort_unstable_by_key(|(place, _)| *place);
        ended.into_iter().map(|(_, result)| result).collect()
    }
}

/// Where the data of a run lies in the cache, in its order. Places that touch are one.
fn places_of(run: &[Key]) -> Vec<SectorRange> {
    let mut places: Vec<SectorRange> = Vec::with_capacity(run.len());
    for place in run.iter().map(place_of) {
        match places.last_mut().filter(|last| last.end() == place.start) {
            Some(last) => last.count = SectorCount(last.count.0 + place.count.0),
            None => places.push(place),
        }
    }
    places
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

    const BATCH_KEYS: usize = Flushing::OURS.batch_keys;
    const WRITE: Most = Most { sectors: WRITE_SECTORS, multiple: 0 };

    fn key(start: u64, sectors: u64) -> Key {
        let pointer = Pointer::new(start % 7 * 4096, Generation(0));
        Key::new(0, start + sectors, sectors).at(pointer)
    }

    #[test]
    fn extents_that_touch_are_one_write_of_a_mebibyte_at_most() {
        let keys = [key(0, 8), key(8, 8), key(17, 8), key(25, 2040), key(2065, 1)];
        let runs: Vec<_> =
            runs_of(&keys, WRITE).map(|run| (run[0].start(), range_of(run).count.0)).collect();
        assert_eq!(runs, [(0, 16), (17, 2048), (2065, 1)]);
        assert!(
            runs_of(&keys, Most::new(0, 0)).map(<[Key]>::len).eq([1; 5]),
            "no extents are merged"
        );
    }

    #[test]
    fn extents_that_share_sectors_with_others_are_not_copied_with_them() {
        let keys =
            [key(40, 8), key(0, 8), key(8, 8), key(20, 8), key(22, 2), key(27, 5), key(32, 8)];
        let (alone, shared) = apart(keys.to_vec());
        let starts = |keys: Vec<Key>| keys.iter().map(Key::start).collect::<Vec<_>>();
        assert_eq!((starts(alone), starts(shared)), (vec![40, 0, 8, 32], vec![20, 22, 27]));
    }

    #[test]
    fn a_batch_ends_where_a_write_does() {
        let length_of = |keys: Vec<Key>, most| {
            let mut gathering = Gathering::new(most, BATCH_KEYS, WRITE);
            keys.iter().take_while(|key| gathering.take(key)).count()
        };
        let length = |keys| length_of(keys, u64::MAX);
        let full = BATCH_KEYS as u64;
        // Apart from each other but for three around the end; all in a row; long ones.
        let end = full * 16 - 16;
        let around = [key(end, 8), key(end + 8, 8), key(end + 16, 8), key(end + 32, 8)];
        assert_eq!(length((0..full - 1).map(|n| key(n * 16, 8)).chain(around).collect()), 20_002);
        assert_eq!(length((0..full * 2).map(|n| key(n * 8, 8)).collect()), 20_224);
        assert_eq!(length((0..9999).map(|n| key(n * 2048, 1024)).collect()), 512);
        assert_eq!(length((0..99).map(|n| key(n * 8, 8)).collect()), 99);
        let apart = || (0..99).map(|n| key(n * 16, 8)).collect();
        assert_eq!((length_of(apart(), 80), length_of(apart(), 81)), (10, 11));
    }

    /// Extents of 8 sectors in a row from a sector on, with their places in the cache.
    fn keys(from: u64, places: &[u64]) -> Vec<Key> {
        let key = |(at, place): (u64, &u64)| {
            let pointer = Pointer::new(*place, Generation(0));
            Key::new(0, from + 8 * (at + 1), 8).at(pointer)
        };
        (0..).zip(places).map(key).collect()
    }

    fn lengths(keys: &[Key], most: Most) -> Vec<usize> {
        runs_of(keys, most).map(<[Key]>::len).collect()
    }

    #[test]
    fn runs_end_with_whole_stripes_where_parts_are_expensive() {
        let keys = keys(40, &[0; 20]);
        assert_eq!(lengths(&keys, Most::new(64, 0)), [8, 8, 4]);
        // The longest multiple of a stripe of 24 sectors is 48: 40 to 48, 48 to 96, and so on.
        assert_eq!(lengths(&keys, Most::new(64, 24)), [1, 6, 6, 6, 1]);
        // A stripe that is longer than a write.
        assert_eq!(lengths(&keys, Most::new(64, 96)), [8, 8, 4]);
    }

    #[test]
    fn neighbors_in_the_cache_are_one_read() {
        let places = places_of(&keys(0, &[64, 72, 80, 8, 16, 0]));
        let found: Vec<_> = places.iter().map(|it| (it.start.0, it.count.0)).collect();
        assert_eq!(found, [(64, 24), (8, 16), (0, 8)]);
    }
}

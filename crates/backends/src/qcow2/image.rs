//! [`Image`]: one image over the disk that keeps it.

use std::ops::Range;
use std::sync::Arc;

use cairn_block::sync::Mutex;
use cairn_block::sync::atomic::{AtomicUsize, Ordering};
use cairn_block::{Disk, Env, Io, IoError, SECTOR_BYTES, Sector, SectorRange, until};
use cairn_format::qcow2::{Header, Run};
use cairn_reactor::Driver;
use event_listener::Event;

use super::cache::Cache;
use super::inflate::inflate;

/// Tables are read in pages of this size, which lie at multiples of it.
const PAGE_BYTES: u64 = 16 << 10;

/// How many pages an image keeps: 4 MiB.
pub(super) const PAGES_MAX: usize = 256;

/// How much an image keeps of decompressed clusters.
pub(super) const CLUSTERS_BYTES_MAX: u64 = 4 << 20;
/// Compressed clusters that are loaded at once: each has up to 4 MiB of input and 2 MiB of output.
pub(super) const LOADS_MAX: usize = 4;

/// One image, without its backing image.
pub(super) struct Image {
    /// The argument of the disk that keeps it.
    pub name: String,
    pub disk: Arc<dyn Disk>,
    pub header: Header,
    pages: Cache,
    clusters: Cache,
    /// Compressed clusters that are being loaded: their input and output are in memory.
    loads: AtomicUsize,
    load_ended: Event,
}

/// The turn to load a compressed cluster, until dropped.
struct Load<'a>(&'a Image);

impl Drop for Load<'_> {
    fn drop(&mut self) {
        self.0.loads.fetch_sub(1, Ordering::AcqRel);
        self.0.load_ended.notify(usize::MAX);
    }
}

impl Image {
    pub fn new(name: String, disk: Arc<dyn Disk>, header: Header) -> Image {
        let clusters = (CLUSTERS_BYTES_MAX / header.cluster_bytes()).clamp(2, 1024);
        let (pages, clusters) = (Cache::new(PAGES_MAX), Cache::new(clusters as usize));
        let (loads, load_ended) = Default::default();
        Image { name, disk, header, pages, clusters, loads, load_ended }
    }

    /// What is at `guest`, which is below the size.
    pub async fn run(&self, env: &Env, guest: u64) -> Result<Run, IoError> {
        let header = &self.header;
        let entry = self.word(env, header.l1_entry_at(guest)).await?;
        let table = header.l2_table(guest, entry).map_err(|error| self.damaged(env, &error))?;
        let Some(table) = table else { return Ok(header.without_table(guest)) };
        let at = header.l2_entry_at(table, guest);
        let entry = self.word(env, at).await?;
        let bitmap = match header.l2_entry_bytes() {
            16 => self.word(env, at + 8).await?,
            _ => 0,
        };
        header.run(guest, entry, bitmap).map_err(|error| self.damaged(env, &error))
    }

    #[cold]
    fn damaged(&self, env: &Env, error: &dyn std::fmt::Display) -> IoError {
        let key = format!("{}: damaged", self.name);
        env.warn(&key, || format!("{}: {error}", self.name));
        IoError::IO
    }

    /// A word of a table, which does not cross a page.
    async fn word(&self, env: &Env, at: u64) -> Result<u64, IoError> {
        let start = at - at % PAGE_BYTES;
        let end = (start + PAGE_BYTES).min(self.disk.sectors().to_bytes());
        let load = async { read_bytes(env, &self.disk, start..end).await };
        let page = self.pages.get(start, load).await?;
        let word = page.get((at - start) as usize..).and_then(|rest| rest.first_chunk());
        word.map(|word| u64::from_be_bytes(*word)).ok_or(IoError::IO)
    }

    async fn turn_to_load(&self) -> Load<'_> {
        let has_room = |loads| (loads < LOADS_MAX).then_some(loads + 1);
        let begins =
            || self.loads.fetch_update(Ordering::AcqRel, Ordering::Acquire, has_room).is_ok();
        until(&self.load_ended, begins).await;
        Load(self)
    }

    /// The content of a compressed cluster. A reactor does not decompress itself: a helper thread
    /// does.
    pub async fn cluster(&self, env: &Env, start: u64, bytes: u64) -> Result<Arc<[u8]>, IoError> {
        let load = async {
            let _turn = self.turn_to_load().await;
            let end = (start + bytes).min(self.disk.sectors().to_bytes());
            let input = read_bytes(env, &self.disk, start..end).await?;
            let out = Arc::new(Mutex::new(Err("a helper thread failed".to_owned())));
            let (how, bytes) = (self.header.compression, self.header.cluster_bytes() as usize);
            let result = out.clone();
            let work = move || {
                let inflated = inflate(how, &input, bytes);
                *result.lock() = inflated;
                0
            };
            Driver::of(env).run(work).await;
            let out = std::mem::replace(&mut *out.lock(), Ok(Vec::new()));
            out.map_err(|error| {
                self.damaged(env, &format!("the compressed cluster at byte {start}: {error}"))
            })
        };
        self.clusters.get(start, load).await
    }
}

/// Bytes of a disk, which are within it.
pub(super) async fn read_bytes(
    env: &Env,
    disk: &Arc<dyn Disk>,
    range: Range<u64>,
) -> Result<Vec<u8>, IoError> {
    let block = u64::from(disk.limits().logical_block);
    let start = range.start - range.start % block;
    let end = range.end.next_multiple_of(block);
    if range.start >= range.end || end > disk.sectors().to_bytes() {
        return Err(IoError::IO);
    }
    let sectors = SectorRange::between(Sector(start / SECTOR_BYTES), Sector(end / SECTOR_BYTES));
    let segs = env.segs(sectors.count);
    env.io(disk, Io::read(sectors, segs.clone())).await?;
    let mut bytes = vec![0; (range.end - range.start) as usize];
    segs.copy_out((range.start - start) as usize, &mut bytes);
    Ok(bytes)
}

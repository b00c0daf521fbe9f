//! Reading an image: its header, and all of its tables, with a look at each reference.

use cairn_block::{ConfigError, ConfigKind, Env, IoError, SECTOR_BYTES};
use cairn_format::qcow2::{Error, Header, Layout, PROLOGUE_BYTES, Prologue, per_block, refcount};

use super::config::Config;
use super::image::Image;
use super::space::{Bitmap, Block, Space};
use super::tables::Tables;
use crate::args::Device;

/// How much is read at first: more than any header that has no more than usual.
const FIRST_BYTES: u64 = 4096;

/// An image's header, with its first cluster.
pub(super) struct Found {
    pub header: Header,
    pub layout: Layout,
    pub first: Vec<u8>,
}

/// What makes an image useless to a writer.
pub(super) fn wrong(device: &Device, error: &Error) -> ConfigError {
    let kind = match error.is_unsupported() {
        true => ConfigKind::Unsupported,
        false => ConfigKind::Damaged,
    };
    ConfigError::new(kind, &device.argument, error.to_string())
}

pub(super) fn failed(device: &Device, what: &str, error: IoError) -> ConfigError {
    ConfigError::new(ConfigKind::System, &device.argument, what).with_source(error)
}

/// Reads the header of an image. It may end within its last sector, which is not seen, and within
/// its last cluster.
pub(super) async fn header(
    env: &Env,
    device: &Device,
    image: &Image,
) -> Result<Found, ConfigError> {
    let wrong = |error: Error| wrong(device, &error);
    let there = image.bytes();
    if there < FIRST_BYTES.min(PROLOGUE_BYTES as u64) {
        let expected = PROLOGUE_BYTES as u64;
        return Err(wrong(Error::Truncated { field: "header", end: there, expected }));
    }
    let read = async |bytes: u64| {
        let read = image.read(env, 0..bytes.min(there)).await;
        read.map_err(|error| failed(device, "header: read", error))
    };
    let mut first = read(FIRST_BYTES).await?;
    let cluster_bytes = Prologue::parse(&first).map_err(wrong)?.cluster_bytes;
    if cluster_bytes > first.len() as u64 {
        first = read(cluster_bytes).await?;
    }
    first.truncate(cluster_bytes as usize);
    let header =
        Header::parse(&first, (there + 1).next_multiple_of(cluster_bytes)).map_err(wrong)?;
    let layout = Layout::parse(&first, &header).map_err(wrong)?;
    Ok(Found { header, layout, first })
}

/// Reads all tables, and finds what is in use.
pub(super) struct Loader<'a> {
    pub env: &'a Env,
    pub config: &'a Config,
    pub image: &'a Image,
    pub found: &'a Found,
    pub space: Space,
    /// The refcount blocks, as bytes.
    pub blocks: Vec<Option<Vec<u8>>>,
}

impl<'a> Loader<'a> {
    pub fn new(env: &'a Env, config: &'a Config, image: &'a Image, found: &'a Found) -> Loader<'a> {
        let (cluster_bytes, layout) = (found.header.cluster_bytes(), &found.layout);
        let entries = (layout.refcount_table_clusters * cluster_bytes / 8) as usize;
        let sizes = (cluster_bytes, layout.refcount_bits);
        let mut space = Space::new(sizes, (layout.refcount_table, entries));
        space.extend(image.bytes().div_ceil(cluster_bytes));
        Loader { env, config, image, found, space, blocks: Vec::new() }
    }

    fn wrong(&self, error: &Error) -> ConfigError {
        wrong(&self.config.image, error)
    }

    async fn read(&self, what: &str, start: u64, bytes: u64) -> Result<Vec<u8>, ConfigError> {
        let end = start.saturating_add(bytes);
        if end > self.image.bytes() / SECTOR_BYTES * SECTOR_BYTES {
            let detail = format!(
                "{what}: found the image's end at byte {}, expected at least {end} bytes",
                self.image.bytes()
            );
            return Err(ConfigError::new(ConfigKind::Damaged, &self.config.image.argument, detail));
        }
        let read = self.image.read(self.env, start..end).await;
        read.map_err(|error| failed(&self.config.image, &format!("{what}: read"), error))
    }

    async fn words(&self, what: &str, start: u64, count: u64) -> Result<Vec<u64>, ConfigError> {
        let bytes = self.read(what, start, count * 8).await?;
        let word = |bytes: &[u8]| bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        Ok(bytes.chunks_exact(8).map(word).collect())
    }

    /// A structure, or the data of a cluster of the content, has these bytes of the image.
    fn claim(&mut self, what: &str, start: u64, bytes: u64) -> Result<(), ConfigError> {
        let cluster_bytes = self.found.header.cluster_bytes();
        for cluster in start / cluster_bytes..(start + bytes).div_ceil(cluster_bytes) {
            let (number, index) = self.space.place_of(cluster);
            let block = self.blocks.get(number).and_then(Option::as_ref);
            let bits = self.found.layout.refcount_bits;
            let count = block.map_or(0, |block| refcount(block, bits, index as usize));
            if !self.space.claim(cluster, count == 1) {
                let detail = format!(
                    "{what}: cluster {cluster}: found the refcount {count}, expected 1, and no \
                     other reference; `cairn check` says what is wrong"
                );
                let device = &self.config.image.argument;
                return Err(ConfigError::new(ConfigKind::Damaged, device, detail));
            }
        }
        Ok(())
    }

    /// The refcount blocks, and the clusters of everything but L2 tables and data.
    pub async fn read_refcounts(&mut self) -> Result<(), ConfigError> {
        let (cluster_bytes, layout) = (self.found.header.cluster_bytes(), &self.found.layout);
        let bytes = layout.refcount_table_clusters * cluster_bytes;
        let entries = self.words("refcount table", layout.refcount_table, bytes / 8).await?;
        let counted = per_block(cluster_bytes, layout.refcount_bits);
        for entry in &entries {
            if !entry.is_multiple_of(cluster_bytes) {
                let (field, expected) = ("refcount table entry", "a multiple of the cluster size");
                let (found, expected) = (*entry, expected.to_owned());
                return Err(self.wrong(&Error::BadField { field, found, expected }));
            }
            self.blocks.push(match entry {
                0 => None,
                at => Some(self.read("refcount block", *at, cluster_bytes).await?),
            });
        }
        for (number, at) in entries.iter().enumerate() {
            let Some(block) = self.blocks[number].as_ref() else { continue };
            let mut bitmap = Bitmap::new(counted);
            for index in 0..counted {
                let refcount = refcount(block, layout.refcount_bits, index as usize);
                bitmap.put(index, refcount > 0);
            }
            let cluster = at / cluster_bytes;
            self.space.put_block(number, Block { cluster, counted: bitmap });
        }
        self.claim("header", 0, 1)?;
        self.claim("refcount table", layout.refcount_table, bytes)?;
        self.claim("L1 table", layout.l1_table, layout.l1_entries * 8)?;
        for at in entries.into_iter().filter(|at| *at != 0) {
            self.claim("refcount block", at, cluster_bytes)?;
        }
        Ok(())
    }

    /// The mapping, with the clusters that it names if `claims`.
    pub async fn read_mapping(&mut self, tables: &Tables, claims: bool) -> Result<(), ConfigError> {
        let (header, layout) = (&self.found.header, &self.found.layout);
        let cluster_bytes = header.cluster_bytes();
        tables.clear();
        let entries = self.words("L1 table", layout.l1_table, layout.l1_entries).await?;
        for (index, entry) in entries.into_iter().enumerate() {
            let guest = index as u64 * header.l1_span();
            let table = header.written_table(guest, entry).map_err(|error| self.wrong(&error))?;
            let Some(at) = table else { continue };
            if claims {
                self.claim(&format!("L1 entry for byte {guest}"), at, cluster_bytes)?;
            }
            let words = self.words("L2 table", at, cluster_bytes / 8).await?;
            for (entry, word) in words.iter().enumerate() {
                let guest = guest + entry as u64 * cluster_bytes;
                let named = header.written_cluster(guest, *word);
                let named = named.map_err(|error| self.wrong(&error))?;
                if let Some(at) = named.filter(|_| claims) {
                    self.claim(&format!("L2 entry for byte {guest}"), at, cluster_bytes)?;
                }
            }
            tables.put(index, at, words.into_iter());
        }
        Ok(())
    }
}

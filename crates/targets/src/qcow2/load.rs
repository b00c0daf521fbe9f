//! Reading an image: its header, and all of its tables, with a look at each reference.

use cairn_block::{ConfigError, ConfigKind, Env, IoError};
use cairn_format::qcow2::{Error, Header, Layout, PROLOGUE_BYTES, Prologue, per_block, refcount};

use super::config::Config;
use super::image::{Image, Writes};
use super::space::{Bitmap, Block, Space};
use super::tables::Tables;
use crate::args::Device;

/// All of the mapping is in memory: that of 32 TiB in clusters of 64 KiB.
const TABLES_BYTES_MAX: u64 = 4 << 30;

/// How much is read at first. It holds the usual header.
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
    let expected = PROLOGUE_BYTES as u64;
    if there < expected {
        return Err(wrong(Error::Truncated { field: "header", end: there, expected }));
    }
    let read = async |bytes: u64| {
        let read = image.read(env, 0..bytes.min(there)).await;
        read.map_err(|error| failed(device, "header: read", error))
    };
    let mut first = read(FIRST_BYTES).await?;
    let cluster_bytes = match Prologue::parse(&first) {
        Ok(prologue) => prologue.cluster_bytes,
        Err(error @ Error::WrongMagic { found: 0 }) => {
            let mut refused = wrong(error);
            refused.detail += "; `cairn format qcow2 --size SIZE` makes an image of a blank device";
            return Err(refused);
        }
        Err(error) => return Err(wrong(error)),
    };
    if cluster_bytes > first.len() as u64 {
        first = read(cluster_bytes).await?;
    }
    first.truncate(cluster_bytes as usize);
    let header =
        Header::parse(&first, (there + 1).next_multiple_of(cluster_bytes)).map_err(wrong)?;
    let layout = Layout::parse(&first, &header).map_err(wrong)?;
    Ok(Found { header, layout, first })
}

/// Reads all tables, and finds what is in use: each cluster once. It reads nothing that is named a
/// second time, so that no image costs more than its own clusters.
pub(super) struct Loader<'a> {
    pub env: &'a Env,
    pub config: &'a Config,
    pub image: &'a Image,
    pub found: &'a Found,
    pub space: Space,
    /// The clusters with the refcount 1; none if refcounts do not count.
    ones: Option<Bitmap>,
    /// What was read, if it is to be written again.
    pub to_rewrite: Option<Writes>,
}

impl<'a> Loader<'a> {
    pub fn new(env: &'a Env, config: &'a Config, image: &'a Image, found: &'a Found) -> Loader<'a> {
        let (cluster_bytes, layout) = (found.header.cluster_bytes(), &found.layout);
        let entries = (layout.refcount_table_clusters * cluster_bytes / 8) as usize;
        let sizes = (cluster_bytes, layout.refcount_bits);
        let mut space = Space::new(sizes, (layout.refcount_table, entries));
        space.extend(image.bytes().div_ceil(cluster_bytes));
        Loader { env, config, image, found, space, ones: None, to_rewrite: None }
    }

    fn wrong(&self, error: &Error) -> ConfigError {
        wrong(&self.config.image, error)
    }

    fn damaged(&self, detail: String) -> ConfigError {
        ConfigError::new(ConfigKind::Damaged, &self.config.image.argument, detail)
    }

    async fn read(&mut self, what: &str, start: u64, bytes: u64) -> Result<Vec<u8>, ConfigError> {
        let (end, there) = (start.saturating_add(bytes), self.image.bytes());
        if end > there {
            return Err(self.damaged(format!(
                "{what}: found the image's end at byte {there}, expected at least {end} bytes"
            )));
        }
        let read = self.image.read(self.env, start..end).await;
        let read =
            read.map_err(|error| failed(&self.config.image, &format!("{what}: read"), error))?;
        if let Some(all) = &mut self.to_rewrite {
            all.insert(start, read.clone());
        }
        Ok(read)
    }

    async fn words(&mut self, what: &str, start: u64, count: u64) -> Result<Vec<u64>, ConfigError> {
        let unit = self.image.unit;
        let bytes = self.read(what, start, (count * 8).next_multiple_of(unit)).await?;
        let words = bytes.chunks_exact(8).filter_map(|word| word.first_chunk());
        Ok(words.map(|word| u64::from_be_bytes(*word)).take(count as usize).collect())
    }

    /// A structure, or the data of a cluster of the content, has these bytes of the image.
    fn claim(&mut self, what: &str, start: u64, bytes: u64) -> Result<(), ConfigError> {
        let cluster_bytes = self.found.header.cluster_bytes();
        for cluster in start / cluster_bytes..(start + bytes).div_ceil(cluster_bytes) {
            let is_one = self.ones.as_ref().is_none_or(|ones| ones.is_set(cluster));
            if self.space.claim(cluster) && is_one {
                continue;
            }
            let found = if is_one { "another reference" } else { "another refcount" };
            return Err(self.damaged(format!(
                "{what}: cluster {cluster}: found {found}, expected the refcount 1 and no other \
                 reference; `cairn check` says what is wrong"
            )));
        }
        Ok(())
    }

    /// The refcount blocks, and which clusters have the refcount 1.
    pub async fn read_refcounts(&mut self) -> Result<(), ConfigError> {
        let (cluster_bytes, layout) = (self.found.header.cluster_bytes(), &self.found.layout);
        let bytes = layout.refcount_table_clusters * cluster_bytes;
        let entries = self.words("refcount table", layout.refcount_table, bytes / 8).await?;
        let counted = per_block(cluster_bytes, layout.refcount_bits);
        let mut ones = Bitmap::new(self.space.capacity());
        let mut seen = Bitmap::new(self.space.capacity());
        for (number, at) in entries.into_iter().enumerate().filter(|(_, at)| *at != 0) {
            let cluster = at / cluster_bytes;
            let is_in_image = cluster < self.space.capacity();
            if !at.is_multiple_of(cluster_bytes) || !is_in_image || seen.is_set(cluster) {
                let expected = "a multiple of the cluster size, in the image, named once";
                let (field, expected) = ("refcount table entry", expected.to_owned());
                return Err(self.wrong(&Error::BadField { field, found: at, expected }));
            }
            seen.put(cluster, true);
            let mut block = Block { cluster, counted: Bitmap::default() };
            let first = number as u64 * counted;
            let there = self.space.capacity().saturating_sub(first).min(counted);
            if there > 0 {
                let bytes = self.read("refcount block", at, cluster_bytes).await?;
                for index in 0..there {
                    let refcount = refcount(&bytes, layout.refcount_bits, index as usize);
                    block.counted.put(index, refcount > 0);
                    ones.put(first + index, refcount == 1);
                }
            }
            self.space.put_block(number, block);
        }
        self.ones = Some(ones);
        self.claim("refcount table", layout.refcount_table, bytes)?;
        for number in 0..layout.refcount_table_clusters * cluster_bytes / 8 {
            if let Some(cluster) = self.space.block(number as usize).map(|block| block.cluster) {
                self.claim("refcount block", cluster * cluster_bytes, cluster_bytes)?;
            }
        }
        Ok(())
    }

    /// The mapping, with the clusters that it names.
    pub async fn read_mapping(&mut self, tables: &Tables) -> Result<(), ConfigError> {
        let (header, layout) = (&self.found.header, &self.found.layout);
        let cluster_bytes = header.cluster_bytes();
        tables.clear();
        self.claim("header", 0, 1)?;
        self.claim("L1 table", layout.l1_table, layout.l1_entries * 8)?;
        let entries = self.words("L1 table", layout.l1_table, layout.l1_entries).await?;
        let mut count = 0;
        for (index, entry) in entries.into_iter().enumerate() {
            let guest = index as u64 * header.l1_span();
            let table = header.written_table(guest, entry).map_err(|error| self.wrong(&error))?;
            let Some(at) = table else { continue };
            count += cluster_bytes;
            if count > TABLES_BYTES_MAX {
                let (field, found) = ("bytes of L2 tables", count);
                let expected = format!("at most {TABLES_BYTES_MAX}");
                return Err(self.wrong(&Error::BadField { field, found, expected }));
            }
            self.claim(&format!("L1 entry for byte {guest}"), at, cluster_bytes)?;
            let words = self.words("L2 table", at, cluster_bytes / 8).await?;
            for (entry, word) in words.iter().enumerate() {
                let guest = guest + entry as u64 * cluster_bytes;
                let named = header.written_cluster(guest, *word);
                if let Some(at) = named.map_err(|error| self.wrong(&error))? {
                    self.claim(&format!("L2 entry for byte {guest}"), at, cluster_bytes)?;
                }
            }
            tables.put(index, at, words.into_iter());
        }
        Ok(())
    }
}

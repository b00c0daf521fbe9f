//! Reading the state that a superblock leads to: both space maps, and the list of devices.

use std::collections::BTreeMap;

use cairn_block::Env;
use cairn_format::thin::{
    BITMAP_ENTRIES, BLOCK_BYTES, Bitmap, Block, DataBlock, DeviceDetails, DeviceId, IndexBlock,
    IndexEntry, METADATA_BLOCKS_MAX, MetadataBlock, RefCount, SpaceMapRoot, Superblock, block,
};

use super::counts::Counts;
use super::error::{Error, MetadataPart, Path};
use super::nodes::{Bounds, Nodes};
use super::store::Device;
use super::transaction::{Transaction, outside};

/// What a superblock leads to.
pub(super) struct Loaded {
    pub txn: Transaction,
    pub devices: BTreeMap<DeviceId, Device>,
}

/// Reads everything but the mappings.
///
/// # Errors
/// The device failed, or something is damaged.
pub(super) async fn load(
    env: &Env,
    nodes: &Nodes,
    superblock: &Superblock,
) -> Result<Loaded, Error> {
    let bounds = bounds_of(nodes, superblock)?;
    let metadata = load_metadata_map(env, nodes, &superblock.metadata_space_map, &bounds).await?;
    let data = load_data_map(env, nodes, &superblock.data_space_map, &bounds).await?;
    let devices = load_devices(env, nodes, superblock, &bounds).await?;
    if let Some(held) = superblock.held_root {
        let path = outside(MetadataPart::Superblock, MetadataBlock::SUPERBLOCK);
        bounds.check(&path, "held_root", held)?;
    }
    refuse_free_metadata(superblock, [&metadata, &data], &devices)?;
    refuse_free_data(superblock, &data, &devices)?;
    Ok(Loaded { txn: Transaction::new(metadata, data), devices })
}

/// Refuses a metadata block that is in use but counted as free: it would be overwritten. Only the
/// blocks that opening reads are checked.
fn refuse_free_metadata(
    superblock: &Superblock,
    [metadata, data]: [&Counts; 2],
    devices: &BTreeMap<DeviceId, Device>,
) -> Result<(), Error> {
    let (own_map, data_map) = (&superblock.metadata_space_map, &superblock.data_space_map);
    let bitmaps = [(MetadataPart::MetadataBitmap, metadata), (MetadataPart::DataBitmap, data)];
    let bitmaps = bitmaps.iter().flat_map(|(place, counts)| {
        counts.pages().iter().filter_map(|page| Some((*place, page.at?)))
    });
    let used = [
        (MetadataPart::Superblock, MetadataBlock::SUPERBLOCK),
        (MetadataPart::MetadataIndex, own_map.bitmap_root),
        (MetadataPart::MetadataCounts, own_map.ref_count_root),
        (MetadataPart::DataIndex, data_map.bitmap_root),
        (MetadataPart::DataCounts, data_map.ref_count_root),
        (MetadataPart::TopLevel, superblock.mapping_root),
        (MetadataPart::Details, superblock.details_root),
    ];
    let held = superblock.held_root.map(|held| (MetadataPart::Superblock, held));
    let roots = devices.iter().map(|(id, device)| (MetadataPart::Mappings(*id), device.root));
    let mut used = used.into_iter().chain(held).chain(bitmaps).chain(roots);
    match used.find(|(_, block)| metadata.get(block.0) == Some(0)) {
        None => Ok(()),
        Some((place, block)) => {
            let detail = "count of this block: found 0, expected 1 or more";
            Err(Error::damaged(outside(place, block), detail))
        }
    }
}

/// If fewer data blocks are in use than mapped, either a mapped block is counted as free or the
/// details are wrong. Only a check of the metadata can tell which.
fn refuse_free_data(
    superblock: &Superblock,
    data: &Counts,
    devices: &BTreeMap<DeviceId, Device>,
) -> Result<(), Error> {
    let all = || devices.values().map(|device| device.details);
    let mapped = all().map(|details| details.mapped_blocks);
    let shares = superblock.time > 0
        || superblock.held_root.is_some()
        || all().any(|details| details.snapshotted_time > 0);
    let least =
        if shares { mapped.max().unwrap_or(0) } else { mapped.fold(0, u64::saturating_add) };
    let found = data.allocated();
    if found >= least {
        return Ok(());
    }
    let path = outside(MetadataPart::Details, superblock.details_root);
    let detail = format!("mapped_blocks: found {least}, expected up to {found}, as are in use");
    Err(Error::damaged(path, detail))
}

fn bounds_of(nodes: &Nodes, superblock: &Superblock) -> Result<Bounds, Error> {
    let (metadata, data) = (&superblock.metadata_space_map, &superblock.data_space_map);
    let (found, device) = (metadata.blocks, nodes.disk.blocks());
    if found > device {
        return Err(Error::Geometry(format!(
            "metadata device: found {device} blocks, expected {found} as in its space map"
        )));
    }
    let path = || outside(MetadataPart::Superblock, MetadataBlock::SUPERBLOCK);
    if found == 0 || found > METADATA_BLOCKS_MAX {
        let detail = format!(
            "metadata_space_map_root nr_blocks: found {found}, expected 1 to {METADATA_BLOCKS_MAX}"
        );
        return Err(Error::damaged(path(), detail));
    }
    if data.blocks > DataBlock::END.0 || data.bitmaps() > found {
        let end = DataBlock::END.0.min(found * BITMAP_ENTRIES);
        let found = data.blocks;
        let detail = format!("data_space_map_root nr_blocks: found {found}, expected up to {end}");
        return Err(Error::damaged(path(), detail));
    }
    Ok(Bounds { metadata_blocks: found, data_blocks: data.blocks })
}

pub(super) async fn load_metadata_map(
    env: &Env,
    nodes: &Nodes,
    root: &SpaceMapRoot,
    bounds: &Bounds,
) -> Result<Counts, Error> {
    let at = root.bitmap_root;
    let path = outside(MetadataPart::MetadataIndex, at);
    bounds.check(&path, "index block", at)?;
    let mut entries: Vec<IndexEntry> = Vec::new();
    let take = |_, bytes: &[u8]| {
        let damaged =
            |error: cairn_format::thin::Error| Error::damaged(path.clone(), error.to_string());
        let index = IndexBlock::decode(block::of(bytes).map_err(damaged)?, at).map_err(damaged)?;
        entries = (0..root.bitmaps() as usize).map(|number| index.entry(number)).collect();
        Ok(())
    };
    nodes.disk.read(env, &[at], take).await?;
    let pages =
        load_pages(env, nodes, MetadataPart::MetadataBitmap, &path, &entries, bounds).await?;
    let place = MetadataPart::MetadataCounts;
    let large = nodes.all::<RefCount>(env, place, root.ref_count_root, bounds).await?;
    counts_of(root, pages, large, place)
}

async fn load_data_map(
    env: &Env,
    nodes: &Nodes,
    root: &SpaceMapRoot,
    bounds: &Bounds,
) -> Result<Counts, Error> {
    let place = MetadataPart::DataIndex;
    let index = nodes.all::<IndexEntry>(env, place, root.bitmap_root, bounds).await?;
    let path = outside(place, root.bitmap_root);
    let (found, expected) = (index.len() as u64, root.bitmaps());
    let gapless = index.iter().zip(0..).all(|((key, _), number)| *key == number);
    if found != expected || !gapless {
        let detail = format!("bitmaps: found {found}, expected numbers 0 to {expected}");
        return Err(Error::damaged(path, detail));
    }
    let entries: Vec<IndexEntry> = index.into_iter().map(|(_, entry)| entry).collect();
    let pages = load_pages(env, nodes, MetadataPart::DataBitmap, &path, &entries, bounds).await?;
    let place = MetadataPart::DataCounts;
    let large = nodes.all::<RefCount>(env, place, root.ref_count_root, bounds).await?;
    counts_of(root, pages, large, place)
}

fn counts_of(
    root: &SpaceMapRoot,
    pages: Vec<(MetadataBlock, Box<Block>)>,
    large: Vec<(u64, RefCount)>,
    place: MetadataPart,
) -> Result<Counts, Error> {
    let large = large.into_iter().map(|(block, count)| (block, count.0));
    Counts::load(root.blocks, pages, large).map_err(|block| {
        let detail = format!(
            "count of block {block}: found a bitmap and a tree that contradict each other, \
             expected 3 in the bitmap exactly if the tree has 3 or more"
        );
        Error::damaged(outside(place, root.ref_count_root), detail)
    })
}

/// Reads the bitmaps of a map in large requests, in the order of their places.
async fn load_pages(
    env: &Env,
    nodes: &Nodes,
    place: MetadataPart,
    from: &Path,
    entries: &[IndexEntry],
    bounds: &Bounds,
) -> Result<Vec<(MetadataBlock, Box<Block>)>, Error> {
    let mut order: Vec<usize> = (0..entries.len()).collect();
    order.sort_unstable_by_key(|&number| entries[number].bitmap);
    let blocks: Vec<MetadataBlock> = order.iter().map(|&number| entries[number].bitmap).collect();
    for (number, &block) in order.iter().zip(&blocks) {
        bounds.check(from, format_args!("bitmap {number}"), block)?;
    }
    if let Some(twice) = blocks.windows(2).find(|pair| pair[0] == pair[1]) {
        let detail = format!("bitmaps: found block {} twice, expected each once", twice[0]);
        return Err(Error::damaged(from.clone(), detail));
    }
    let mut pages: Vec<(MetadataBlock, Box<Block>)> =
        entries.iter().map(|entry| (entry.bitmap, Box::new([0; BLOCK_BYTES]))).collect();
    let mut next = order.iter();
    let take = |at, bytes: &[u8]| {
        let damaged = |error: cairn_format::thin::Error| {
            Error::damaged(outside(place, at), error.to_string())
        };
        let bytes = block::of(bytes).map_err(damaged)?;
        Bitmap::decode(bytes, at).map_err(damaged)?;
        let number = *next.next().expect("blocks come in the order they were asked for");
        pages[number].1.copy_from_slice(bytes);
        Ok(())
    };
    nodes.disk.read(env, &blocks, take).await?;
    Ok(pages)
}

async fn load_devices(
    env: &Env,
    nodes: &Nodes,
    superblock: &Superblock,
    bounds: &Bounds,
) -> Result<BTreeMap<DeviceId, Device>, Error> {
    let (top, details) = (superblock.mapping_root, superblock.details_root);
    let roots = nodes.all::<MetadataBlock>(env, MetadataPart::TopLevel, top, bounds).await?;
    let all = nodes.all::<DeviceDetails>(env, MetadataPart::Details, details, bounds).await?;
    let mut devices = BTreeMap::new();
    let (mut roots, mut all) = (roots.into_iter().peekable(), all.into_iter().peekable());
    loop {
        let (key, root, own) = match (roots.peek(), all.peek()) {
            (None, None) => return Ok(devices),
            (Some(&(key, root)), Some(&(same, own))) if key == same => (key, root, own),
            (Some(&(key, _)), other) if other.is_none_or(|(other, _)| *other > key) => {
                return Err(missing(key, MetadataPart::Details, details));
            }
            (_, other) => {
                let key = other.map_or(0, |(key, _)| *key);
                return Err(missing(key, MetadataPart::TopLevel, top));
            }
        };
        let id = DeviceId::new(key).map_err(|error| {
            Error::damaged(outside(MetadataPart::TopLevel, top), error.to_string())
        })?;
        devices.insert(id, Device { root, details: own });
        roots.next();
        all.next();
    }
}

fn missing(key: u64, place: MetadataPart, root: MetadataBlock) -> Error {
    let detail = format!("device {key}: found in one of top-level and details tree, not in this");
    Error::damaged(outside(place, root), detail)
}

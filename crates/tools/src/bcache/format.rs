//! `cairn format bcache`: a cache device, its backing devices, or both as one set.
//!
//! A cache is made whole, in use and empty, with a volume for each backing device, whose state is
//! clean. So it can be opened at once, here and by the kernel, and what is written to a backing
//! device alone is not hidden by it. A backing device without a cache belongs to no set.
//!
//! All devices are judged before any is written. The order, and what a crash between two steps
//! leaves:
//! 1. blank devices;
//! 2. journal, root, volumes and priorities, then a flush: blank devices, as far as the probe sees;
//! 3. the superblocks of the backing devices, then a flush: devices that are clean, and whose cache
//!    is missing;
//! 4. the superblock of the cache, then a flush: the set.

use std::time::SystemTime;

use cairn_block::{ConfigError, ConfigKind, SECTOR_BYTES};
use cairn_format::bcache::build::{BuildError, Builder, WriteSectors};
use cairn_format::bcache::uuids::UuidEntry;
use cairn_format::bcache::{
    BackingState, BackingSuperblock, CacheMode, CacheSuperblock, NewBacking, NewCache, Replacement,
    SUPERBLOCK_SECTOR, Uuid,
};
use cairn_outcome::failure::{Outcome, system, wrong};
use cairn_outcome::stdout;
use rustix::rand::{GetRandomFlags, getrandom};

use crate::args::{FormatBcacheArgs, bytes};
use crate::source::Source;

/// The size of buckets, in sectors, where there is room for enough of them.
const BUCKET_SECTORS: u64 = 1024;
/// How many buckets a cache gets where the size of a bucket is not said.
const BUCKETS_WANTED: u64 = 1024;
/// The fewest buckets with which the kernel runs a cache.
const BUCKETS_MIN: u64 = 513;
/// The smallest bucket, in sectors.
const BUCKET_SECTORS_MIN: u64 = 8;
/// Bytes of a label.
const LABEL_BYTES: usize = 32;

/// A backing device to be.
struct Backing {
    source: Source,
    superblock: BackingSuperblock,
    label: [u8; LABEL_BYTES],
}

/// A cache device to be.
struct Cache {
    source: Source,
    superblock: CacheSuperblock,
}

/// Runs the verb. `make_way` makes all devices blank, if all of them may be.
///
/// # Errors
/// A device is not blank and `--yes` is not given, is too small, or cannot be written.
pub fn run(
    args: &FormatBcacheArgs,
    make_way: impl FnOnce(&[&Source]) -> Outcome<()>,
) -> Outcome<u8> {
    let cache = args.cache.as_deref().map(Source::write).transpose()?;
    let backings: Vec<Source> =
        args.backing.iter().map(|path| Source::write(path)).collect::<Outcome<_>>()?;
    let block_sectors = block_sectors(args, cache.iter().chain(&backings))?;
    let cache = cache.map(|source| new_cache(args, source, block_sectors)).transpose()?;
    let set_uuid = cache.as_ref().map(|cache| cache.superblock.set_uuid());
    if let Some(extra) = args.label.get(backings.len()) {
        return Err(wrong("", "--label", format!("'{extra}'"), "one for each --backing at most"));
    }
    let most = cache.as_ref().map_or(usize::MAX, |cache| cache.superblock.geometry().uuids());
    if backings.len() > most {
        let expected = format!("at most {most} with buckets of this size");
        return Err(wrong("", "--backing", backings.len(), expected));
    }
    let backings: Vec<Backing> = (0..)
        .zip(backings)
        .map(|(index, source)| new_backing(args, (index, source), block_sectors, set_uuid))
        .collect::<Outcome<_>>()?;
    let sources: Vec<&Source> = cache
        .iter()
        .map(|cache| &cache.source)
        .chain(backings.iter().map(|backing| &backing.source))
        .collect();
    make_way(&sources)?;
    let superblock = cache.as_ref().map(|cache| build(cache, &backings)).transpose()?;
    for Backing { source, superblock, .. } in &backings {
        source.write_at(SUPERBLOCK_SECTOR * SECTOR_BYTES, &superblock.encode())?;
        source.flush()?;
    }
    if let (Some(cache), Some(superblock)) = (&cache, superblock) {
        cache.source.write_at(SUPERBLOCK_SECTOR * SECTOR_BYTES, &superblock.encode())?;
        cache.source.flush()?;
    }
    stdout::print(&said(cache.as_ref(), &backings))
}

/// Sectors of a block: as said, or the largest that a device needs.
fn block_sectors<'a>(
    args: &FormatBcacheArgs,
    devices: impl Iterator<Item = &'a Source>,
) -> Outcome<u16> {
    let needed = devices.max_by_key(|source| source.logical_block());
    let needed_bytes = needed.map_or(SECTOR_BYTES as u32, Source::logical_block);
    let bytes = args.block_size.unwrap_or(needed_bytes);
    if ![512, 1024, 2048, 4096].contains(&bytes) {
        return Err(wrong("", "--block-size", bytes, "512, 1024, 2048 or 4096"));
    }
    match needed.filter(|_| bytes < needed_bytes) {
        Some(source) => {
            let expected = format!("{needed_bytes} at least, which the device needs");
            Err(wrong(&source.name, "--block-size", bytes, expected))
        }
        None => Ok((u64::from(bytes) / SECTOR_BYTES) as u16),
    }
}

fn new_cache(args: &FormatBcacheArgs, source: Source, block_sectors: u16) -> Outcome<Cache> {
    let device_sectors = source.bytes / SECTOR_BYTES;
    let bucket_sectors = match &args.bucket_size {
        Some(size) => bytes("--bucket-size", size)? / SECTOR_BYTES,
        None => {
            let fits = (device_sectors / BUCKETS_WANTED).max(BUCKET_SECTORS_MIN);
            BUCKET_SECTORS.min(1 << fits.ilog2())
        }
    };
    let buckets = device_sectors / bucket_sectors;
    if bucket_sectors >= BUCKET_SECTORS_MIN && buckets < BUCKETS_MIN {
        let found = format!("{buckets} buckets of {} bytes", bucket_sectors * SECTOR_BYTES);
        return Err(wrong(&source.name, "size", found, format!("at least {BUCKETS_MIN}")));
    }
    let new = NewCache {
        uuid: random_uuid()?,
        set_uuid: random_uuid()?,
        block_sectors,
        bucket_sectors,
        device_sectors,
        replacement: Replacement::of_word(&args.replacement).unwrap_or(Replacement::Lru),
        discard: args.discard,
    };
    match CacheSuperblock::fresh(&new) {
        Ok(superblock) => Ok(Cache { source, superblock }),
        Err(error) => Err(unfit(&source, error)),
    }
}

fn new_backing(
    args: &FormatBcacheArgs,
    (index, source): (usize, Source),
    block_sectors: u16,
    set_uuid: Option<Uuid>,
) -> Outcome<Backing> {
    let label = match args.label.get(index) {
        Some(text) => label_bytes(text)?,
        None => [0; LABEL_BYTES],
    };
    // Otherwise no request to a volume would begin at a block of its device.
    if !args.data_offset.is_multiple_of(u64::from(block_sectors)) {
        let expected = format!("a multiple of the block size, {block_sectors} sectors");
        return Err(wrong("", "--data-offset", args.data_offset, expected));
    }
    let new = NewBacking {
        uuid: random_uuid()?,
        set_uuid: set_uuid.unwrap_or_default(),
        block_sectors,
        data_offset: args.data_offset,
        mode: CacheMode::of_word(&args.cache_mode).unwrap_or(CacheMode::Writethrough),
        state: if set_uuid.is_some() { BackingState::Clean } else { BackingState::None },
        label,
    };
    let superblock = BackingSuperblock::fresh(&new);
    let fits = |superblock: &BackingSuperblock| {
        superblock.data_sectors(source.bytes / SECTOR_BYTES).map(drop)
    };
    match superblock.and_then(|superblock| fits(&superblock).map(|()| superblock)) {
        Ok(superblock) => Ok(Backing { source, superblock, label }),
        Err(error) => Err(unfit(&source, error)),
    }
}

fn label_bytes(text: &str) -> Outcome<[u8; LABEL_BYTES]> {
    let mut label = [0; LABEL_BYTES];
    if text.len() > LABEL_BYTES || text.contains(['\0', '\n']) {
        let expected = format!("one line of at most {LABEL_BYTES} bytes");
        return Err(wrong("", "--label", format!("{text:?}"), expected));
    }
    label[..text.len()].copy_from_slice(text.as_bytes());
    Ok(label)
}

fn random_uuid() -> Outcome<Uuid> {
    let mut bytes = [0; 16];
    let filled = getrandom(&mut bytes, GetRandomFlags::empty());
    filled.map_err(|error| system("", "find random bytes", error.into()))?;
    // Version 4: all of it is random.
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    Ok(Uuid(bytes))
}

fn unfit(source: &Source, error: impl std::fmt::Display) -> ConfigError {
    ConfigError::new(ConfigKind::Argument, &source.name, error.to_string())
}

/// The words of the command behind `format bcache`.
pub fn command(args: &FormatBcacheArgs) -> String {
    let mut words = Vec::new();
    let mut add = |option: &str, value: String| words.push(format!("{option} {value}"));
    if let Some(cache) = &args.cache {
        add("--cache", cache.display().to_string());
    }
    for backing in &args.backing {
        add("--backing", backing.display().to_string());
    }
    if let Some(size) = &args.bucket_size {
        add("--bucket-size", size.clone());
    }
    if let Some(size) = &args.block_size {
        add("--block-size", size.to_string());
    }
    let set = [
        ("--data-offset", args.data_offset.to_string(), "16"),
        ("--cache-mode", args.cache_mode.clone(), "writethrough"),
        ("--replacement", args.replacement.clone(), "lru"),
    ];
    for (option, value, default) in set {
        if value != default {
            add(option, value);
        }
    }
    for label in &args.label {
        add("--label", format!("'{label}'"));
    }
    if args.discard {
        words.push("--discard".to_owned());
    }
    words.join(" ")
}

/// Writes the empty cache, but for its superblock, which is the answer.
fn build(cache: &Cache, backings: &[Backing]) -> Outcome<CacheSuperblock> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now_s = now.map_or(0, |since| u32::try_from(since.as_secs()).unwrap_or(u32::MAX));
    let volume = |backing: &Backing| UuidEntry {
        uuid: backing.superblock.uuid(),
        label: backing.label,
        first_registered: now_s,
        last_registered: now_s,
        ..UuidEntry::default()
    };
    let volumes: Vec<UuidEntry> = backings.iter().map(volume).collect();
    let mut seed = [0; 8];
    seed.copy_from_slice(&random_uuid()?.0[..8]);
    let seed = u64::from_le_bytes(seed);
    let built = Builder::new(&cache.superblock, seed, Writer(&cache.source)).finish(&volumes);
    let superblock = built.map_err(|error| match error {
        BuildError::Write(error) => error,
        error => unfit(&cache.source, error),
    })?;
    cache.source.flush()?;
    Ok(superblock)
}

struct Writer<'a>(&'a Source);

impl WriteSectors for Writer<'_> {
    type Error = ConfigError;

    fn write(&mut self, sector: u64, bytes: &[u8]) -> Outcome<()> {
        self.0.write_at(sector * SECTOR_BYTES, bytes)
    }
}

fn said(cache: Option<&Cache>, backings: &[Backing]) -> String {
    let mut text = String::new();
    if let Some(Cache { source, superblock }) = cache {
        let (name, geometry) = (&source.name, superblock.geometry());
        let (buckets, kib) = (geometry.buckets(), geometry.bucket_sectors() / 2);
        let set = superblock.set_uuid();
        text.push_str(&format!("{name}: {buckets} buckets of {kib} KiB, set {set}\n"));
    }
    for Backing { source, superblock, .. } in backings {
        let (name, offset) = (&source.name, superblock.data_offset());
        let data = source.bytes / SECTOR_BYTES - offset;
        let set = match superblock.set_uuid() {
            set if set.is_zero() => "no set".to_owned(),
            set => format!("set {set}"),
        };
        text.push_str(&format!("{name}: {data} sectors from sector {offset} on, {set}\n"));
    }
    text
}

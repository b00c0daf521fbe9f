//! Exception stores as files and block devices: choosing, making, growing and removing them.
//!
//! A store is durable before it is recorded, so that no record names a store that a crash has
//! undone. The order is: zero the first area and flush, write the header, sync the folder of a new
//! file. Zeros are written even to a new file, so that its records always find room.
//!
//! Only a blank device is formatted, and not for an origin that is itself a cache, store or pool.
//! An empty store is used without formatting; a store with records is refused. A new file is sparse
//! and as large as the snapshot can ever need.

use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::arguments::is_path;
use crate::world::World;
use cairn_block::{
    ConfigError, ConfigKind, Disk, Io, IoError, SECTOR_BYTES, Sector, SectorCount, SectorRange,
};
use cairn_format::snapshot::{ChunkSize, Layout, Opening, Record as StoreRecord};
use cairn_outcome::failure::{Outcome, refused, system, wrong};
use cairn_tools::snapshot::format::{check_size, format};
use cairn_tools::source::{Source, refuse_unless_blank, sync_folder};

/// The limit of default names that are tried because files of earlier ones exist.
const NAMES_MAX: u32 = 1000;

/// The parameters of a store.
pub struct Wanted {
    /// The path as the table names it.
    pub argument: String,
    /// The path for the system.
    pub path: PathBuf,
    /// The chunk size.
    pub chunk: ChunkSize,
    /// Bytes of a file to make; none: room for every chunk of the origin.
    pub bytes: Option<u64>,
    /// The origin's size.
    pub origin_sectors: u64,
    /// The server grows the store by itself.
    pub grows: bool,
    /// The signature in the origin's content by which it is itself a cache, store or pool.
    pub origin_layer: Option<String>,
}

impl Wanted {
    fn new_file_bytes(&self) -> Outcome<u64> {
        let bytes = match self.bytes {
            Some(bytes) => bytes / SECTOR_BYTES * SECTOR_BYTES,
            None => {
                let chunks = self.chunk.chunks_of(self.origin_sectors);
                let sectors = Layout::needed_sectors(self.chunk, chunks);
                let sectors = sectors.ok_or_else(|| {
                    wrong(&self.argument, "--chunk", self.chunk.sectors(), "a larger chunk")
                })?;
                sectors * SECTOR_BYTES
            }
        };
        self.check_size(bytes).map(|()| bytes)
    }

    fn check_size(&self, bytes: u64) -> Outcome<()> {
        check_size(&self.argument, self.chunk, bytes)
    }

    /// Refuses to format a store for such an origin.
    fn refuse_layer(&self) -> Outcome<()> {
        let Some(found) = &self.origin_layer else { return Ok(()) };
        let detail = format!(
            "the origin is itself a cache, store or pool: found {found}; to snapshot it all the \
             same, make the store first: {}",
            self.command()
        );
        Err(ConfigError::new(ConfigKind::Argument, &self.argument, detail))
    }

    fn way_on(&self) -> String {
        format!("to lose that: {}", self.command())
    }

    fn command(&self) -> String {
        let chunk = self.chunk.sectors();
        format!("cairn format snapshot {} --chunk {chunk} --yes", self.argument)
    }
}

/// A path for the store of `name` beside the state file, where there is no file yet.
///
/// # Errors
/// There are a thousand already.
pub fn default_path(state: &Path, name: &str) -> Outcome<PathBuf> {
    let names = (0..NAMES_MAX).map(|n| match n {
        0 => format!("{name}.cow"),
        n => format!("{name}.{n}.cow"),
    });
    let mut paths = names.map(|file| state.with_file_name(file));
    let free = paths.find(|path| fs::symlink_metadata(path).is_err());
    free.ok_or_else(|| wrong(name, "store", format!("{NAMES_MAX} files"), "a free name"))
}

/// Refuses an argument that cannot stand in a table line, or that names no durable device.
///
/// # Errors
/// It is such an argument.
pub fn check_argument(argument: &str) -> Outcome<()> {
    if argument.is_empty() || argument.contains(char::is_whitespace) || !is_path(argument) {
        let expected = "a file or block device, its path without spaces";
        return Err(wrong("store", "path", format!("'{argument}'"), expected));
    }
    Ok(())
}

/// Makes an empty, durable store at the path, or accepts the empty one there. True if the file was
/// made.
///
/// # Errors
/// The device is in use, not blank or too small, or the system refused. No new file is left.
pub fn prepare(wanted: &Wanted) -> Outcome<bool> {
    if fs::symlink_metadata(&wanted.path).is_err() {
        return make(wanted).map(|()| true);
    }
    if let Some(bytes) = wanted.bytes {
        let expected = "none: the device exists";
        return Err(wrong(&wanted.argument, "--size", bytes, expected));
    }
    if wanted.grows && !wanted.path.is_file() {
        return Err(wrong(&wanted.argument, "--grow", "a block device", "a file, to grow"));
    }
    adopt(wanted).map(|()| false)
}

fn make(wanted: &Wanted) -> Outcome<()> {
    wanted.refuse_layer()?;
    // If another program has made the file since the test, it is refused and stays.
    let source = Source::create(&wanted.path, wanted.new_file_bytes()?)?;
    let written = format(&source, wanted.chunk).and_then(|()| sync_folder(&wanted.path));
    if written.is_err() {
        discard(&wanted.path);
    }
    written
}

fn adopt(wanted: &Wanted) -> Outcome<()> {
    let source = Source::write(&wanted.path)?;
    wanted.check_size(source.bytes)?;
    let refuse = |kind, found: String| {
        let expected = "a blank device or an empty store of this chunk size";
        Err(refused(kind, &wanted.argument, "header", found, expected))
    };
    let opening = match Opening::decide(&source.bytes_at(0, SECTOR_BYTES as usize)?) {
        Ok(opening) => opening,
        Err(error) => {
            let found = source.judge(0, |_| false)?;
            let detail = format!("{error} or a blank device; found {found}; {}", wanted.way_on());
            return Err(ConfigError::new(ConfigKind::Damaged, &wanted.argument, detail));
        }
    };
    match opening {
        Opening::Blank => {
            let found = source.judge(0, |_| false)?;
            refuse_unless_blank(&wanted.argument, &found, &wanted.way_on())?;
            wanted.refuse_layer()?;
            format(&source, wanted.chunk)
        }
        Opening::Existing(header) if !header.is_valid() => {
            refuse(ConfigKind::Argument, "an invalidated store".to_owned())
        }
        Opening::Existing(header) if header.chunk_size() != wanted.chunk => {
            let sectors = header.chunk_size().sectors();
            refuse(ConfigKind::Argument, format!("a store with chunks of {sectors} sectors"))
        }
        Opening::Existing(_) => {
            let first = source.bytes_at(wanted.chunk.bytes(), SECTOR_BYTES as usize)?;
            match StoreRecord::slots(&first).next() {
                Some(record) if !record.is_end() => {
                    refuse(ConfigKind::Argument, "a store with records".to_owned())
                }
                _ => Ok(()),
            }
        }
    }
}

/// Refuses a recorded store without a header: its content is lost. The device is opened as a table
/// opens it: an earlier process may have left it, locked.
///
/// # Errors
/// It is blank, or can't be read.
pub fn refuse_blank(world: &World, argument: &str) -> Outcome<()> {
    match opening(world, argument)? {
        Opening::Existing(_) => Ok(()),
        Opening::Blank => {
            let expected = "the store of a snapshot that is recorded";
            Err(refused(ConfigKind::Damaged, argument, "header", "a blank device", expected))
        }
    }
}

/// Marks a recorded store invalid if its snapshot ended while the store could not be written.
///
/// # Errors
/// The store looks valid and cannot be written.
pub fn mark_lost(world: &World, argument: &str) -> Outcome<()> {
    let Opening::Existing(header) = opening(world, argument)? else { return Ok(()) };
    if !header.is_valid() {
        return Ok(());
    }
    if world.read_only() {
        let expected = "invalid, as the state file says (a writable start marks it)";
        return Err(refused(ConfigKind::Damaged, argument, "header", "valid", expected));
    }
    tracing::warn!("{argument}: its snapshot ended while it could not be written: marked invalid");
    let disk = world.open(argument)?;
    let written = world.on_home(argument, async move |env| {
        let block = first_block(&disk);
        let segs = env.segs(block.count);
        env.io(&disk, Io::read(block, segs.clone())).await?;
        segs.copy_in(0, &header.invalidated().encode());
        env.io(&disk, Io::write(block, segs)).await?;
        env.io(&disk, Io::flush()).await
    });
    written.map_err(|error| unread(argument, &error))
}

fn opening(world: &World, argument: &str) -> Outcome<Opening> {
    let disk = world.open_to_read(argument)?;
    let read = world.on_home(argument, async move |env| {
        let block = first_block(&disk);
        let segs = env.segs(block.count);
        env.io(&disk, Io::read(block, segs.clone())).await.map(|()| segs.to_vec())
    });
    let bytes = read.map_err(|error| unread(argument, &error))?;
    let opening = Opening::decide(&bytes[..SECTOR_BYTES as usize]);
    opening.map_err(|error| ConfigError::new(ConfigKind::Damaged, argument, error.to_string()))
}

/// The smallest range that has the header.
fn first_block(disk: &Arc<dyn Disk>) -> SectorRange {
    let block = u64::from(disk.limits().logical_block).max(SECTOR_BYTES);
    SectorRange::new(Sector(0), SectorCount::of_bytes(block))
}

fn unread(argument: &str, error: &IoError) -> ConfigError {
    ConfigError::new(ConfigKind::System, argument, format!("header: {error}"))
}

/// Makes a file longer, durably; it may be in use. Returns its former size. A file that has the new
/// length already, as after a crash, is accepted. `option` is the option that gave the size.
///
/// # Errors
/// It is not a file, it is longer, or the system refused.
pub fn grow(argument: &str, path: &Path, option: &str, bytes: u64) -> Outcome<u64> {
    let failed = |what: &str| {
        let (argument, what) = (argument.to_owned(), what.to_owned());
        move |error| system(argument, &what, error)
    };
    let file = OpenOptions::new().write(true).open(path).map_err(failed("open"))?;
    let meta = file.metadata().map_err(failed("look at"))?;
    if !meta.is_file() {
        return Err(wrong(argument, "kind", "a block device", "a file, to make it longer"));
    }
    if bytes < meta.len() || !bytes.is_multiple_of(SECTOR_BYTES) {
        let expected = format!("whole sectors, at least {} bytes", meta.len());
        return Err(wrong(argument, option, bytes, expected));
    }
    file.set_len(bytes).map_err(failed("grow"))?;
    file.sync_all().map_err(failed("flush"))?;
    Ok(meta.len())
}

/// The space that a file has, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Allocated to the file.
    pub allocated: u64,
    /// Free on its file system.
    pub available: u64,
}

impl Room {
    /// The space of a file; none if the path is not a file, or the system does not know.
    pub fn of(path: &Path) -> Option<Room> {
        let meta = fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
        let system = rustix::fs::statvfs(path).ok()?;
        let available = system.f_bavail.saturating_mul(system.f_frsize);
        Some(Room { allocated: meta.blocks() * 512, available })
    }

    /// How many of the unused sectors of a store its file system has space for.
    pub fn left_sectors(&self, used: u64, total: u64) -> u64 {
        let ahead = (self.allocated / SECTOR_BYTES).saturating_sub(used);
        let left = self.available / SECTOR_BYTES;
        total.saturating_sub(used).min(left.saturating_add(ahead))
    }
}

/// Removes a file that `prepare` made. If that fails, logs it, and the file stays.
pub fn discard(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != ErrorKind::NotFound
    {
        tracing::warn!("{}: cannot remove the unused file: {error}", path.display());
    }
}

#[cfg(test)]
mod tests {
    use super::{Room, Wanted, default_path, grow, prepare};
    use cairn_format::snapshot::ChunkSize;
    use std::fs;
    use std::path::Path;

    fn wanted(path: &Path, bytes: Option<u64>) -> Wanted {
        let (argument, path) = (path.display().to_string(), path.to_owned());
        let chunk = ChunkSize::new(8).unwrap();
        Wanted {
            argument,
            path,
            chunk,
            bytes,
            origin_sectors: 8 * 1000,
            grows: false,
            origin_layer: None,
        }
    }

    #[test]
    fn a_new_store_has_room_for_every_chunk_and_an_empty_one_is_used_again() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.cow");
        assert!(prepare(&wanted(&path, None)).unwrap());
        let bytes = fs::read(&path).unwrap();
        assert!(bytes.len() as u64 >= (1000 + 1000 / 256 + 2) * 4096);
        assert_eq!(&bytes[..4], b"SnAp");
        assert!(!prepare(&wanted(&path, None)).unwrap(), "an empty store");
        let state = folder.path().join("state");
        let next = default_path(&state, "s").unwrap();
        assert_eq!(next, folder.path().join("s.1.cow"));
    }

    #[test]
    fn a_store_that_is_not_blank_or_too_small_is_refused_and_unchanged() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.cow");
        prepare(&wanted(&path, Some(1 << 16))).unwrap();
        let mut used = fs::read(&path).unwrap();
        used[4096 + 8] = 2;
        let mut other = used.clone();
        other[12] = 16;
        let mut invalid = used.clone();
        invalid[4] = 0;
        for (bytes, part) in [
            (used, "a store with records"),
            (other, "chunks of 16 sectors"),
            (invalid, "an invalidated store"),
            (vec![7; 1 << 16], "header"),
            (vec![0; 8192], "size: found 8192"),
        ] {
            fs::write(&path, &bytes).unwrap();
            let line = prepare(&wanted(&path, None)).unwrap_err().to_string();
            assert!(line.contains(part), "{line}");
            assert_eq!(fs::read(&path).unwrap(), bytes);
        }
        let line = prepare(&wanted(&path, Some(4096))).unwrap_err().to_string();
        assert!(line.contains("--size: found 4096, expected none"), "{line}");
    }

    #[test]
    fn a_store_is_formatted_for_a_layer_by_no_verb_and_used_if_it_exists() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.cow");
        let layer = || Some("dm-writecache at byte 0".to_owned());
        let of_layer = || Wanted { origin_layer: layer(), ..wanted(&path, Some(1 << 16)) };
        let line = prepare(&of_layer()).unwrap_err().to_string();
        assert!(line.contains("origin is itself a cache, store or pool: found dm-writecache"));
        assert!(line.contains("make the store first: cairn format snapshot"), "{line}");
        assert!(!path.exists());
        fs::write(&path, vec![0; 1 << 16]).unwrap();
        prepare(&Wanted { bytes: None, ..of_layer() }).unwrap_err();
        assert_eq!(fs::read(&path).unwrap(), vec![0; 1 << 16]);
        assert!(!prepare(&wanted(&path, None)).unwrap());
        assert!(!prepare(&Wanted { bytes: None, ..of_layer() }).unwrap());
    }

    #[test]
    fn a_device_that_is_not_blank_is_named_with_what_it_holds() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.cow");
        for (at, mark, part) in [
            (32769, &b"CD001"[..], "not blank: found iso9660 at byte 32768; to lose that: cairn"),
            (4095, b"x", "not blank: found data (a byte that is not zero) at byte 4095; "),
            (0, b"XFSB", "; found xfs at byte 0; to lose that: cairn format snapshot"),
        ] {
            let mut bytes = vec![0; 1 << 16];
            bytes[at..at + mark.len()].copy_from_slice(mark);
            fs::write(&path, &bytes).unwrap();
            let line = prepare(&wanted(&path, None)).unwrap_err().to_string();
            assert!(line.contains(part), "{line}");
            assert_eq!(fs::read(&path).unwrap(), bytes);
        }
    }

    #[test]
    fn a_new_store_has_its_first_area_on_the_medium() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.cow");
        prepare(&wanted(&path, Some(1 << 20))).unwrap();
        let room = Room::of(&path).unwrap();
        assert!(room.allocated >= 2 * 4096 && room.allocated < 1 << 20, "{room:?}");
        assert!(room.available > 0);
    }

    #[test]
    fn a_store_has_the_room_that_its_file_system_has() {
        let room = |allocated, available| Room { allocated, available };
        for (room, used, total, left) in [
            (room(16 << 9, 1 << 30), 16, 100, 84),
            (room(16 << 9, 10 << 9), 16, 100, 10),
            (room(100 << 9, 0), 16, 100, 84),
            (room(20 << 9, 10 << 9), 16, 100, 14),
            (room(0, 0), 16, 16, 0),
        ] {
            assert_eq!(room.left_sectors(used, total), left, "{room:?}");
        }
    }

    #[test]
    fn a_file_grows_and_never_shrinks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("s.cow");
        prepare(&wanted(&path, Some(1 << 16))).unwrap();
        let grow = |bytes| grow("s", &path, "--size", bytes);
        assert_eq!(grow(1 << 17).unwrap(), 1 << 16);
        assert_eq!(fs::metadata(&path).unwrap().len(), 1 << 17);
        assert_eq!(grow(1 << 17).unwrap(), 1 << 17, "again");
        for bytes in [4096, (1 << 17) + 1] {
            grow(bytes).unwrap_err();
        }
    }
}

//! The dirty marker of a file (`cairn_block::dirty_marker`), in a file beside it:
//! `FILE.cairn-dirty-marker`.
//!
//! A file of a network or cluster file system has one, because other hosts can open it. What is not
//! in [`SHARED`] is a file system of this host, and so is one that this program does not know.
//!
//! The marker is no extended attribute: a host finds those or not by the protocol that it mounts
//! the folder with, and must find the marker by whichever. See decision 0027.
//!
//! # What a crash leaves
//! The text is durable under another name before a rename puts it in place of the former one, and
//! the call returns when the folder is durable, too. So each text is whole. A crash leaves either
//! text, and perhaps a file `FILE.cairn-dirty-marker.new`, which the next change replaces or
//! removes.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use cairn_block::dirty_marker::DirtyMarker;
use cairn_block::{ConfigError, ConfigKind, Env, LocalFuture, MarkerStore};
use rustix::fs::{FileType, OFlags};

use super::open::system;
use super::probe::Kind;
use super::{FileDisk, FileOptions};
use crate::held::patiently;
use crate::helper::on_helper;

/// What the name of the marker adds to that of the file.
const SUFFIX: &str = ".cairn-dirty-marker";
/// More than any marker has.
const TEXT_BYTES_MAX: u64 = 64 << 10;

/// The file systems whose files other hosts can open, by the numbers of statfs(2). Many of FUSE are
/// (GlusterFS, sshfs, virtiofs, s3fs), and no number tells which; for the others a marker is only
/// needless.
const SHARED: [(u32, &str); 25] = [
    (0x6163_6673, "acfs"),
    (0x5346_414f, "afs"),
    (0x6b41_4653, "kafs"),
    (0x1983_0326, "beegfs"),
    (0x00c3_6400, "ceph"),
    (0xff53_4d42, "cifs"),
    (0x0000_517b, "smb"),
    (0xfe53_4d42, "smb2"),
    (0x7375_7245, "coda"),
    (0x6573_5546, "fuse"),
    (0x0116_1970, "gfs2"),
    (0x4750_4653, "gpfs"),
    (0x0131_11a8, "ibrix"),
    (0x0bd0_0bd0, "lustre"),
    (0x0000_564c, "ncp"),
    (0x0000_6969, "nfs"),
    (0x7461_636f, "ocfs2"),
    (0x2003_0528, "orangefs"),
    (0xaad7_aaea, "panfs"),
    (0x7c7c_6673, "prl_fs"),
    (0xbeef_dead, "snfs"),
    (0x786f_4256, "vboxsf"),
    (0xbacb_acbc, "vmhgfs"),
    (0xa501_fcf5, "vxfs"),
    (0x0102_1997, "9p"),
];

/// True if other hosts can open the files of a file system of this number.
fn is_shared(magic: u32) -> bool {
    SHARED.iter().any(|(shared, _)| *shared == magic)
}

/// The marker of one file.
#[derive(Clone)]
pub(super) struct SideFile {
    /// As the user named the file.
    argument: String,
    /// The file, by the path that all names of it lead to.
    file: PathBuf,
}

impl SideFile {
    /// That of this open file, if other hosts can open it.
    pub fn beside(argument: &str, fd: impl AsFd) -> Result<Option<SideFile>, ConfigError> {
        let stat = rustix::fs::fstat(&fd).map_err(|error| system(argument, "path", error))?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Ok(None);
        }
        let found = rustix::fs::fstatfs(&fd);
        let found = found.map_err(|error| system(argument, "file system", error))?;
        // The number has 32 bits, whatever the type of the field.
        is_shared(found.f_type as u32).then(|| SideFile::of(argument)).transpose()
    }

    /// That of the file of this name, on a file system of any kind.
    fn of(argument: &str) -> Result<SideFile, ConfigError> {
        match fs::canonicalize(argument) {
            Ok(file) => Ok(SideFile { argument: argument.to_owned(), file }),
            Err(error) => {
                Err(ConfigError::new(ConfigKind::System, argument, "path").with_source(error))
            }
        }
    }

    fn path(&self, suffix: &str) -> PathBuf {
        let mut name = self.file.clone().into_os_string();
        name.push(SUFFIX);
        name.push(suffix);
        name.into()
    }

    fn folder(&self) -> &Path {
        self.file.parent().unwrap_or(Path::new("/"))
    }

    /// The text, if there is one. Blocks the thread.
    pub fn text(&self) -> Result<Option<String>, ConfigError> {
        // A client of NFS remembers for a while that a name is not there. It asks the server again
        // when the folder is opened. A folder that may not be read is no error.
        drop(File::open(self.folder()));
        match read(&self.path("")) {
            Ok(text) => Ok(Some(text)),
            // With a name that is too long no marker was ever made.
            Err(error) if error.kind() == ErrorKind::NotFound || is_too_long(&error) => Ok(None),
            Err(error) => Err(failed(&self.argument, "read", error)),
        }
    }

    /// Replaces the text, or removes it, durably. Blocks the thread.
    pub fn set(&self, text: Option<&str>) -> Result<(), ConfigError> {
        let new = self.path(".new");
        let changed = match text {
            Some(text) => {
                write(&new, text).and_then(|()| fs::rename(&new, self.path(""))).inspect_err(|_| {
                    // The first error is the one to return.
                    drop(fs::remove_file(&new));
                })
            }
            None => remove(&new).and_then(|()| remove(&self.path(""))),
        };
        let what = if text.is_some() { "write" } else { "remove" };
        changed.map_err(|error| failed(&self.argument, what, error))?;
        let synced = sync_folder(self.folder());
        synced.map_err(|error| failed(&self.argument, "flush the folder", error))
    }

    /// Runs on a helper thread: a server that does not answer keeps no reactor waiting.
    async fn call<T: Send + 'static>(
        &self,
        env: &Env,
        work: impl FnOnce(&SideFile) -> Result<T, ConfigError> + Send + 'static,
    ) -> Result<T, ConfigError> {
        let this = self.clone();
        on_helper(env, (&self.argument, "dirty marker"), move || work(&this)).await
    }
}

impl MarkerStore for SideFile {
    fn disk(&self) -> String {
        self.file.display().to_string()
    }

    /// A host that has the file mounted can write it, whoever else uses it.
    fn fences(&self) -> bool {
        false
    }

    fn read<'a>(&'a self, env: &'a Env) -> LocalFuture<'a, Result<Option<String>, ConfigError>> {
        Box::pin(self.call(env, SideFile::text))
    }

    fn write<'a>(
        &'a self,
        env: &'a Env,
        text: Option<String>,
    ) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(self.call(env, move |file| file.set(text.as_deref())))
    }
}

/// What the notes of dirty markers call the file of this name: the path that all names lead to, or
/// the argument if there is no such file.
pub(crate) fn name_in_notes(argument: &str) -> String {
    SideFile::of(argument).map_or_else(|_| argument.to_owned(), |file| file.disk())
}

/// The dirty marker that stands beside this open file, for a program that opens it without a table.
/// Blocks the thread.
///
/// # Errors
/// It is not known whether one stands, or it is none that this program knows.
pub fn standing_marker(argument: &str, fd: impl AsFd) -> Result<Option<DirtyMarker>, ConfigError> {
    let side = SideFile::beside(argument, fd)?;
    let text = side.map(|side| side.text()).transpose()?.flatten();
    text.map(|text| DirtyMarker::of_text(argument, &text)).transpose()
}

/// Removes the dirty marker of this generation from a file that no other program has open, on a
/// file system of any kind. Answers what it was. Blocks the thread.
///
/// # Errors
/// Another marker stands, or none, or the file is in use or is none.
pub(crate) fn unmark(argument: &str, generation: &str) -> Result<DirtyMarker, ConfigError> {
    let options = FileOptions { direct: false, image: false };
    let disk = patiently(|| FileDisk::open(argument, false, options))?;
    if disk.0.kind == Kind::Block {
        let expected = "a file: block devices have none";
        return Err(ConfigError::argument(argument, "dirty marker", "a block device", expected));
    }
    let side = SideFile::of(argument)?;
    let text = side.text()?;
    let marker = DirtyMarker::named(argument, text.as_deref(), generation)?;
    side.set(None)?;
    Ok(marker)
}

/// The whole text in one line. What is no text is shown escaped, and is no marker.
fn read(path: &Path) -> io::Result<String> {
    // A pipe in its place answers at once. A link may lead to what the user must not see.
    let flags = (OFlags::NONBLOCK | OFlags::NOFOLLOW).bits().cast_signed();
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(ErrorKind::InvalidData, "it is no file"));
    }
    let mut bytes = Vec::new();
    file.take(TEXT_BYTES_MAX).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    let text = text.strip_suffix('\n').unwrap_or(&text);
    match text.chars().any(char::is_control) {
        true => Ok(text.chars().take(80).collect::<String>().escape_debug().to_string()),
        false => Ok(text.to_owned()),
    }
}

/// Writes a new file. What a kill left there goes, and so does a link, which is not followed.
fn write(path: &Path, text: &str) -> io::Result<()> {
    remove(path)?;
    let mut file = File::create_new(path)?;
    file.write_all(format!("{text}\n").as_bytes())?;
    file.sync_all()
}

/// Removes a file that may be there.
fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound && !is_too_long(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Some file systems cannot flush a folder: they have no such call, as their server makes each name
/// durable before it answers.
fn sync_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder)?.sync_all() {
        Err(error) if matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOTSUP)) => Ok(()),
        result => result,
    }
}

fn is_too_long(error: &io::Error) -> bool {
    error.raw_os_error() == Some(libc::ENAMETOOLONG)
}

fn failed(argument: &str, what: &str, error: io::Error) -> ConfigError {
    let detail = format!("dirty marker: {what} the file {SUFFIX}");
    ConfigError::new(ConfigKind::System, argument, detail).with_source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "1 5f writecache /dev/nvme0n1 - a 7";

    fn scratch() -> (tempfile::TempDir, SideFile) {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("disk");
        fs::write(&file, [0; 512]).unwrap();
        let side = SideFile::of(file.to_str().unwrap()).unwrap();
        (folder, side)
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn network_and_cluster_file_systems_are_shared_and_local_ones_are_not() {
        let shared = [
            ("nfs", 0x6969),
            ("cifs", 0xff53_4d42),
            ("smb2", 0xfe53_4d42),
            ("ceph", 0x00c3_6400),
            ("9p", 0x0102_1997),
            ("fuse", 0x6573_5546),
            ("gfs2", 0x0116_1970),
            ("ocfs2", 0x7461_636f),
            ("lustre", 0x0bd0_0bd0),
            ("beegfs", 0x1983_0326),
            ("gpfs", 0x4750_4653),
            ("afs", 0x5346_414f),
        ];
        for (name, magic) in shared {
            assert!(is_shared(magic), "{name}");
            assert!(SHARED.contains(&(magic, name)), "{name}");
        }
        let local = [
            ("ext4", 0xef53),
            ("xfs", 0x5846_5342),
            ("btrfs", 0x9123_683e),
            ("tmpfs", 0x0102_1994),
            ("ramfs", 0x8584_58f6),
            ("zfs", 0x2fc1_2fc1),
            ("f2fs", 0xf2f5_2010),
            ("bcachefs", 0xca45_1a4e),
            ("overlayfs", 0x794c_7630),
            ("vfat", 0x4d44),
            ("squashfs", 0x7371_7368),
            ("erofs", 0xe0f5_e1e2),
        ];
        for (name, magic) in local {
            assert!(!is_shared(magic), "{name}");
        }
    }

    #[test]
    fn a_text_is_read_as_it_was_written_and_gone_when_it_is_removed() {
        let (folder, side) = scratch();
        assert_eq!(side.text().unwrap(), None);
        side.set(Some("former")).unwrap();
        side.set(Some(TEXT)).unwrap();
        assert_eq!(side.text().unwrap().as_deref(), Some(TEXT));
        assert_eq!(names(folder.path()), ["disk", "disk.cairn-dirty-marker"]);
        side.set(None).unwrap();
        assert_eq!(side.text().unwrap(), None);
        side.set(None).unwrap();
        assert_eq!(names(folder.path()), ["disk"]);
    }

    #[test]
    fn what_a_kill_left_is_no_marker_and_goes_with_the_next_change() {
        let (folder, side) = scratch();
        for next in [Some(TEXT), None] {
            fs::write(side.path(".new"), "1 5f write").unwrap();
            let before = side.text().unwrap();
            assert!(before.is_none() || before.as_deref() == Some(TEXT), "{before:?}");
            side.set(next).unwrap();
            assert_eq!(side.text().unwrap().as_deref(), next);
            assert!(!side.path(".new").exists());
        }
        assert_eq!(names(folder.path()), ["disk"]);
    }

    #[test]
    fn a_write_that_fails_leaves_the_former_text_and_says_which_file() {
        let (_folder, side) = scratch();
        side.set(Some(TEXT)).unwrap();
        fs::create_dir(side.path(".new")).unwrap();
        let error = side.set(Some("later")).unwrap_err();
        let line = format!("{error}: {}", error.source.as_ref().unwrap());
        assert!(line.contains("dirty marker: write the file .cairn-dirty-marker"), "{line}");
        assert_eq!(side.text().unwrap().as_deref(), Some(TEXT));
    }

    #[test]
    fn a_link_in_the_place_of_the_new_text_is_not_followed() {
        let (folder, side) = scratch();
        let other = folder.path().join("other");
        fs::write(&other, "precious").unwrap();
        std::os::unix::fs::symlink(&other, side.path(".new")).unwrap();
        side.set(Some(TEXT)).unwrap();
        assert_eq!(fs::read(&other).unwrap(), b"precious");
        assert!(side.path("").symlink_metadata().unwrap().is_file());
    }

    #[test]
    fn what_is_no_text_is_one_short_line_and_no_marker() {
        let (_folder, side) = scratch();
        let junk = format!("{TEXT}\n{}", "x\0".repeat(100_000));
        fs::write(side.path(""), junk).unwrap();
        let text = side.text().unwrap().unwrap();
        assert!(!text.contains('\n') && text.len() < 200, "{text}");
        assert_eq!(DirtyMarker::decode(&text), None);
        fs::write(side.path(""), "").unwrap();
        assert_eq!(side.text().unwrap().as_deref(), Some(""), "an empty file is no absent one");
    }

    #[test]
    fn all_names_of_a_file_are_one_in_the_notes() {
        let (folder, side) = scratch();
        let link = folder.path().join("link");
        std::os::unix::fs::symlink("disk", &link).unwrap();
        let around = format!("{}/../{}", folder.path().display(), {
            let name = folder.path().file_name().unwrap();
            format!("{}/disk", name.display())
        });
        for name in [link.to_str().unwrap(), &around] {
            assert_eq!(name_in_notes(name), side.disk(), "{name}");
        }
        assert_eq!(name_in_notes("no/such/file"), "no/such/file");
    }

    #[test]
    fn a_name_without_room_for_a_marker_has_none() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("n".repeat(250));
        fs::write(&file, [0; 512]).unwrap();
        let side = SideFile::of(file.to_str().unwrap()).unwrap();
        assert_eq!(side.text().unwrap(), None);
        side.set(None).unwrap();
        assert!(side.set(Some(TEXT)).is_err());
    }

    #[test]
    fn only_the_marker_that_is_named_is_removed_by_hand() {
        let (_folder, side) = scratch();
        let file = side.argument.clone();
        let refused = |generation| unmark(&file, generation).unwrap_err().to_string();
        assert!(refused("5f").contains("dirty marker: found 'none', expected 5f"));
        side.set(Some(TEXT)).unwrap();
        assert!(refused("60").contains("dirty marker: found '5f', expected 60"));
        let user = FileDisk::open(&file, true, FileOptions::default()).unwrap();
        assert!(refused("5f").contains("in use"));
        drop(user);
        assert_eq!(side.text().unwrap().as_deref(), Some(TEXT));
        assert_eq!(unmark(&file, "5f").unwrap().host, "a");
        assert_eq!(side.text().unwrap(), None);
    }

    #[test]
    fn the_marker_is_read_and_written_beside_a_reactor() {
        let (_folder, side) = scratch();
        for on in crate::tests::worlds() {
            let side = side.clone();
            let found = on.block_on(cairn_block::ReactorId(0), move |env| async move {
                side.write(&env, Some(TEXT.to_owned())).await?;
                let read = side.read(&env).await?;
                side.write(&env, None).await?;
                Ok::<_, ConfigError>((read, side.read(&env).await?))
            });
            assert_eq!(found.unwrap(), (Some(TEXT.to_owned()), None));
        }
    }
}

//! Images that the TOML file asks for: sparse files, made where they are missing.
//!
//! Order, and what a crash between two steps leaves:
//! 1. `PATH.new` is made in its full size and flushed: a file that the next start makes anew;
//! 2. renamed to PATH, which must not be there: the image, whole;
//! 3. the folder is flushed: the image, durable. Only now a volume uses it.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use cairn_outcome::failure::{Outcome, system};
use cairn_tools::source::sync_folder;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::config::Image;

/// Makes a sparse image if it is missing. What is there is left as it is, whatever its size.
///
/// # Errors
/// The system refused.
pub fn make_image(image: &Image) -> Outcome<()> {
    if fs::symlink_metadata(&image.path).is_ok() {
        return Ok(());
    }
    let failed = |error| system(image.path.display().to_string(), "make the image", error);
    let unfinished = beside(&image.path);
    let made = make(&unfinished, image.bytes).and_then(|()| put(&unfinished, &image.path));
    if made.is_err() {
        // That it cannot go is not what to tell.
        drop(fs::remove_file(&unfinished));
    }
    made.map_err(failed)?;
    sync_folder(&image.path)
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    path.with_file_name(name)
}

fn make(path: &Path, bytes: u64) -> io::Result<()> {
    // What a crash left there is no image yet.
    if let Err(error) = fs::remove_file(path)
        && error.kind() != ErrorKind::NotFound
    {
        return Err(error);
    }
    let file = File::create_new(path)?;
    file.set_len(bytes)?;
    file.sync_all()
}

/// Gives it its name, in the place of nothing.
fn put(unfinished: &Path, path: &Path) -> io::Result<()> {
    match renameat_with(CWD, unfinished, CWD, path, RenameFlags::NOREPLACE) {
        // Another process made it at the same time.
        Err(Errno::EXIST) => fs::remove_file(unfinished),
        // The file system cannot refuse to replace a file: a link is refused where it can.
        Err(Errno::INVAL | Errno::NOSYS) => {
            fs::hard_link(unfinished, path).and_then(|()| fs::remove_file(unfinished))
        }
        renamed => renamed.map_err(io::Error::from),
    }
}

#[cfg(test)]
mod tests {
    use super::{Image, make_image};
    use std::fs;

    #[test]
    fn an_image_is_made_whole_and_what_is_there_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        // A crash in the middle.
        fs::write(folder.path().join("disk.img.new"), "short").unwrap();
        let image = Image { path: path.clone(), bytes: 1 << 20 };
        make_image(&image).unwrap();
        assert_eq!(fs::read(&path).unwrap(), vec![0; 1 << 20]);
        fs::write(&path, "precious").unwrap();
        make_image(&image).unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"precious");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn an_image_that_cannot_be_made_leaves_nothing_under_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk.img");
        // Longer than any file may be.
        let line = make_image(&Image { path, bytes: u64::MAX - 511 }).unwrap_err().to_string();
        assert!(line.contains("disk.img: make the image"), "{line}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}

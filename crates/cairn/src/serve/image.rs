//! Images that the TOML file asks for: sparse files, made where they are missing.
//!
//! I1. An image is made only for a volume that has none of its images. If some exist, the others
//!     were lost or are not mounted; an empty one in their place would show old data, or lose the
//!     dirty data of a cache. Such a volume is not served. The images of a volume include those of
//!     the volumes that its table names with `@`.
//! I2. If a volume is not served because it lacks an image, that image is not made for another
//!     volume either, which then lacks it too.
//! I3. An image is not made if the state file records it as part of a dirty cache.
//!
//! Order, and what a crash between two steps leaves:
//! 1. `PATH.new` is made in its full size and flushed: a file that the next start replaces;
//! 2. renamed to PATH, which must not exist: the image, whole;
//! 3. the folder is flushed: the image, durable. Only now a volume uses it.
//!
//! A crash between two images of a volume leaves one of them: the next start names the other.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use cairn_block::{ConfigError, ConfigKind, unescape_word};
use cairn_outcome::failure::{Outcome, system};
use cairn_tools::source::sync_folder;
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use super::config::{Config, Image};
use cairn_control::plan::Plan;
use cairn_control::state::StateFile;

/// A volume that lacks an image.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Lack {
    volume: String,
    /// The number of the missing image.
    missing: usize,
    /// That of one that is there; none if the missing one is recorded as part of a dirty cache.
    there: Option<usize>,
}

/// Makes the missing images, and refuses the volumes that lack some of theirs.
///
/// # Errors
/// The system refused.
pub fn make_images(config: &Config, plan: &mut Plan, state: Option<&StateFile>) -> Outcome<()> {
    let images = &config.images;
    let is_there: Vec<bool> =
        images.iter().map(|image| fs::symlink_metadata(&image.path).is_ok()).collect();
    let number = |argument: &String| {
        let path = config.base.join(unescape_word(argument));
        images.iter().position(|image| image.path == path)
    };
    let needs = plan.arguments().into_iter();
    let needs: Vec<(String, Vec<usize>)> = needs
        .map(|(volume, arguments)| (volume, arguments.iter().filter_map(number).collect()))
        .collect();
    let caches = state.map(StateFile::caches).unwrap_or_default();
    let record_of = |image: &Image| {
        let mut dirty = caches.iter().filter(|record| record.may_be_dirty());
        dirty.find(|record| {
            let mut extents = record.cache.iter().chain(&record.origin);
            extents.any(|extent| config.base.join(unescape_word(&extent.device)) == image.path)
        })
    };
    let is_recorded: Vec<bool> = images.iter().map(|image| record_of(image).is_some()).collect();
    let lacks = lacks(&is_there, &is_recorded, &needs);
    for Lack { volume, missing, there } in &lacks {
        let missing = &images[*missing];
        let (though, else_do) = match (there, record_of(missing), state) {
            (None, Some(record), Some(state)) => record.way_out(state.path()),
            (there, ..) => {
                let there =
                    there.map_or("another".to_owned(), |at| images[at].path.display().to_string());
                let make = format!(
                    "make it empty: truncate -s {} {}",
                    size_text(missing.bytes),
                    missing.path.display()
                );
                (format!("{there} is there"), make)
            }
        };
        let detail = format!("image: missing, though {though}: put it back, or {else_do}");
        let path = missing.path.display().to_string();
        plan.refuse(volume, ConfigError::new(ConfigKind::System, path, detail));
    }
    let is_withheld = |image: usize| {
        let of = |volume: &String| lacks.iter().any(|lack| lack.volume == *volume);
        needs.iter().any(|(volume, numbers)| of(volume) && numbers.contains(&image))
    };
    let wanted = images.iter().enumerate().filter(|(at, _)| !is_there[*at] && !is_withheld(*at));
    wanted.map(|(_, image)| image).try_for_each(make_image)
}

/// Which volumes lack images (I1 to I3).
fn lacks(is_there: &[bool], is_recorded: &[bool], needs: &[(String, Vec<usize>)]) -> Vec<Lack> {
    let mut lacks: Vec<Lack> = Vec::new();
    loop {
        let next = needs.iter().find_map(|(volume, images)| {
            if lacks.iter().any(|lack| lack.volume == *volume) {
                return None;
            }
            let missing = images.iter().find(|&&image| !is_there[image])?;
            let there = images.iter().find(|&&image| is_there[image]).copied();
            let recorded = images.iter().find(|&&image| !is_there[image] && is_recorded[image]);
            let other = || {
                let of = |volume: &String| lacks.iter().find(|lack| lack.volume == *volume);
                let mut refused = needs.iter().filter_map(|(volume, own)| Some((of(volume)?, own)));
                refused.find(|(_, own)| own.iter().any(|image| images.contains(image)))
            };
            let volume = volume.clone();
            match (recorded, there) {
                (Some(&missing), _) => Some(Lack { volume, missing, there: None }),
                (None, Some(_)) => Some(Lack { volume, missing: *missing, there }),
                (None, None) => other().map(|(lack, _)| Lack { volume, ..lack.clone() }),
            }
        });
        match next {
            Some(lack) => lacks.push(lack),
            None => return lacks,
        }
    }
}

/// A size in the form of `truncate` and the TOML file.
fn size_text(bytes: u64) -> String {
    const UNITS: [(u64, &str); 3] = [(1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")];
    let unit = UNITS.iter().find(|(unit, _)| bytes.is_multiple_of(*unit));
    unit.map_or(bytes.to_string(), |(unit, name)| format!("{}{name}", bytes / unit))
}

/// Makes a sparse image if it is missing. An existing file is not changed, even if it has another
/// size.
fn make_image(image: &Image) -> Outcome<()> {
    if fs::symlink_metadata(&image.path).is_ok() {
        return Ok(());
    }
    let failed = |error| system(image.path.display().to_string(), "make the image", error);
    let unfinished = beside(&image.path);
    let made = make(&unfinished, image.bytes).and_then(|()| put(&unfinished, &image.path));
    if made.is_err() {
        // The caller gets the first error, not that of the removal.
        drop(fs::remove_file(&unfinished));
    }
    made.map_err(failed)?;
    tracing::info!("made {}, {}", image.path.display(), size_text(image.bytes));
    sync_folder(&image.path)
}

fn beside(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    path.with_file_name(name)
}

fn make(path: &Path, bytes: u64) -> io::Result<()> {
    // A file that a crash left there is not an image yet.
    if let Err(error) = fs::remove_file(path)
        && error.kind() != ErrorKind::NotFound
    {
        return Err(error);
    }
    let file = File::create_new(path)?;
    file.set_len(bytes)?;
    file.sync_all()
}

/// Gives the file its final name, which must be unused.
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
    use super::{Image, Lack, lacks, make_image};
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
    fn a_volume_with_some_of_its_images_lacks_the_others() {
        let lack = |volume: &str, missing, there| Lack {
            volume: volume.to_owned(),
            missing,
            there: Some(there),
        };
        let needs = |all: &[(&str, &[usize])]| -> Vec<(String, Vec<usize>)> {
            all.iter().map(|(volume, images)| ((*volume).to_owned(), images.to_vec())).collect()
        };
        let (both, new) = (needs(&[("v", &[0, 1])]), [false; 4]);
        assert_eq!(lacks(&[true, true], &new, &both), []);
        assert_eq!(lacks(&[false, false], &new, &both), [], "a first start");
        assert_eq!(lacks(&[true, false], &new, &both), [lack("v", 1, 0)]);
        assert_eq!(lacks(&[false, true], &new, &both), [lack("v", 0, 1)]);
        let recorded = Lack { volume: "v".to_owned(), missing: 1, there: None };
        assert_eq!(lacks(&[false, false], &[false, true], &both), [recorded]);
        // f is beneath v; on f, w keeps image 2, which nobody else has.
        let stack = needs(&[("f", &[1]), ("w", &[1, 2]), ("v", &[0, 1]), ("x", &[3])]);
        let expected = [lack("v", 1, 0), lack("f", 1, 0), lack("w", 1, 0)];
        assert_eq!(lacks(&[true, false, false, false], &new, &stack), expected);
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

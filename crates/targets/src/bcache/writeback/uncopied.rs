//! The extents that a drain could not copy: how many there are, and the first few by name.

use std::fmt;

use cairn_block::CopyError;
use cairn_format::bcache::Key;

/// How many extents a message names.
const NAMED: usize = 8;

/// An extent that could not be copied, and which side of the copy failed.
pub(super) struct Uncopied {
    pub key: Key,
    pub error: CopyError,
}

/// The extents that a drain has tried to copy without success. They stay dirty.
#[derive(Default)]
pub(super) struct AllUncopied {
    first: Vec<Uncopied>,
    extents: u64,
    sectors: u64,
    /// So many extents in a row failed, and a sample of the others, that the rest was not tried.
    gave_up: bool,
}

impl AllUncopied {
    /// True if each extent that was tried has been copied.
    pub fn is_empty(&self) -> bool {
        self.extents == 0
    }

    /// Adds extents of a batch.
    pub fn extend(&mut self, failed: Vec<Uncopied>) {
        self.extents += failed.len() as u64;
        self.sectors += failed.iter().map(|one| one.key.sectors()).sum::<u64>();
        let room = NAMED - self.first.len();
        self.first.extend(failed.into_iter().take(room));
    }

    /// The drain tries no other extent.
    pub fn give_up(&mut self) {
        self.gave_up = true;
    }

    /// The message, with the names of the devices.
    pub fn text(&self, backing: &str, cache: &str) -> impl fmt::Display {
        std::fmt::from_fn(move |f| {
            let AllUncopied { first, extents, sectors, gave_up } = self;
            let extents_word = if *extents == 1 { "extent" } else { "extents" };
            let what = format_args!("{extents} {extents_word} ({sectors} sectors)");
            write!(f, "could not copy {what}, which stay dirty")?;
            if *gave_up {
                write!(f, ", and so did a sample of the others, the rest was not tried")?;
            }
            for (index, Uncopied { key, error }) in first.iter().enumerate() {
                let (inode, start, end) = (key.inode(), key.start(), key.end());
                let lead = if index == 0 { ":" } else { ";" };
                write!(
                    f,
                    "{lead} inode {inode} sectors {start}..{end} ({} sectors)",
                    key.sectors()
                )?;
                match error {
                    CopyError::Read(error) => write!(f, ", reading {cache}: {error}")?,
                    CopyError::Write(error) => write!(f, ", writing {backing}: {error}")?,
                }
            }
            match extents - first.len() as u64 {
                0 => Ok(()),
                more => write!(f, "; and {more} more"),
            }
        })
    }
}

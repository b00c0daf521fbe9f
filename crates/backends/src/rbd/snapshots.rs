//! [`NotConsistent`]: which snapshots of an image were taken while a dirty marker stood. They lack
//! data that a cache had, also after the marker is gone.
//!
//! Two keys of the image's metadata say it. The ids of snapshots rise, so no clock is needed.
//! - `cairn.marker_base`: the highest id when the marker was put there. Later ones are not
//!   consistent.
//! - `cairn.not_consistent`: the ids of former markers' lives, as ranges `FIRST-LAST`.
//!
//! S1. The base is durable before the marker, and is kept while one stands, also if another cache
//!     adopts it. Without a base all snapshots count.
//! S2. The list is durable before the marker is removed. A kill in between leaves both, and both
//!     say the same.
//! S3. The list is short: a range without a snapshot is dropped, and of more than [`RANGES_MAX`]
//!     the two oldest become one, which may name snapshots in between that are consistent.

use std::ffi::CStr;
use std::fmt::Write;

use super::image::{Image, Snapshot};
use super::metadata::Editor;

const BASE: &CStr = c"cairn.marker_base";
const LIST: &CStr = c"cairn.not_consistent";

/// The most ranges of a list (S3).
const RANGES_MAX: usize = 128;

/// Ids that are named, each range with both ends, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct NotConsistent(Vec<(u64, u64)>);

impl NotConsistent {
    /// Words that are no ranges are left out: only this module writes them.
    fn parse(text: &str) -> NotConsistent {
        let range = |word: &str| {
            let (first, last) = word.split_once('-')?;
            Some((first.parse().ok()?, last.parse().ok()?))
        };
        NotConsistent(text.split_whitespace().filter_map(range).collect())
    }

    fn encode(&self) -> String {
        self.0.iter().fold(String::new(), |mut text, (first, last)| {
            // Writing to a string does not fail.
            let _ = write!(text, "{}{first}-{last}", if text.is_empty() { "" } else { " " });
            text
        })
    }

    fn has(&self, id: u64) -> bool {
        self.0.iter().any(|(first, last)| (*first..=*last).contains(&id))
    }

    /// Adds the snapshots above `base`, and forgets those that are gone (S3).
    fn end_life(&mut self, base: u64, ids: &[u64]) {
        let newer = ids.iter().copied().filter(|id| *id > base && !self.has(*id));
        let range = newer.clone().min().zip(newer.max());
        self.0.extend(range);
        self.0.retain(|(first, last)| ids.iter().any(|id| (*first..=*last).contains(id)));
        while self.0.len() > RANGES_MAX {
            let (first, _) = self.0.remove(0);
            self.0[0].0 = first;
        }
    }
}

fn base_of(image: &Image) -> Result<u64, i32> {
    Ok(image.metadata(BASE)?.and_then(|text| text.parse().ok()).unwrap_or(0))
}

fn list_of(image: &Image) -> Result<NotConsistent, i32> {
    Ok(NotConsistent::parse(&image.metadata(LIST)?.unwrap_or_default()))
}

/// A marker is about to be put beside an image that has none (S1).
pub(super) fn begin_life(editor: &Editor<'_>) -> Result<(), i32> {
    let highest = editor.image.snapshots()?.iter().map(|it| it.id).max().unwrap_or(0);
    editor.set(BASE, Some(&highest.to_string()))
}

/// The marker of an image is about to be removed (S2).
pub(super) fn end_life(editor: &Editor<'_>) -> Result<(), i32> {
    let image = editor.image;
    let ids: Vec<u64> = image.snapshots()?.iter().map(|it| it.id).collect();
    let before = list_of(image)?;
    let mut list = before.clone();
    list.end_life(base_of(image)?, &ids);
    if list == before {
        return Ok(());
    }
    let text = list.encode();
    editor.set(LIST, Some(text.as_str()).filter(|text| !text.is_empty()))
}

/// Whether a snapshot was taken while a marker stood: the one that stands, and one that is gone.
pub(super) fn judge(image: &Image, name: &str) -> Result<(bool, bool), i32> {
    let is_it = |it: &Snapshot| it.name == name;
    let Some(Snapshot { id, .. }) = image.snapshots()?.into_iter().find(is_it) else {
        return Err(-libc::ENOENT);
    };
    Ok((id > base_of(image)?, list_of(image)?.has(id)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_of_a_life_are_named_until_they_are_removed() {
        let mut list = NotConsistent::default();
        list.end_life(4, &[2, 4]);
        assert_eq!(list.encode(), "");
        list.end_life(4, &[2, 4, 7, 9]);
        assert_eq!(list.encode(), "7-9");
        list.end_life(12, &[2, 9, 12, 13]);
        assert_eq!(list.encode(), "7-9 13-13");
        assert_eq!(NotConsistent::parse(&list.encode()), list);
        assert_eq!([2, 7, 9, 12, 13].map(|id| list.has(id)), [false, true, true, false, true]);
        // A kill after S2: the same life ends twice.
        list.end_life(12, &[2, 9, 12, 13]);
        assert_eq!(list.encode(), "7-9 13-13");
        list.end_life(13, &[12, 13]);
        assert_eq!(list.encode(), "13-13");
        list.end_life(13, &[]);
        assert_eq!(list.encode(), "");
    }

    #[test]
    fn a_long_list_names_more_and_never_less() {
        let mut list = NotConsistent::default();
        let mut ids = Vec::new();
        for life in 0..1000 {
            ids.push(2 * life + 1);
            list.end_life(2 * life, &ids);
        }
        assert!(list.0.len() <= RANGES_MAX && list.encode().len() < 4096);
        assert!(ids.iter().all(|id| list.has(*id)));
        assert!(!list.has(1998), "those of late lives are told from others");
    }
}

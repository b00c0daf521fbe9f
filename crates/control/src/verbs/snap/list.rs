//! `snap list`: snapshots with their stores, and merges under way.

use std::collections::BTreeSet;
use std::fmt;

use cairn_block::Report;
use cairn_outcome::failure::Outcome;
use cairn_targets::snapshot;
use serde::{Deserialize, Serialize};

use super::SnapWords;
use super::rollback::Merge;
use crate::control::server::Caller;
use crate::kept::family_of;
use crate::names::{SnapName, is_hidden, merge_of, parent_of};
use crate::reach::Named;
use crate::state::Record;
use crate::verbs::verb::declare;
use crate::verbs::{Changes, Verbs};

/// The state of a snapshot, by its word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SnapState {
    /// It has the content of its moment, and room.
    #[serde(rename = "valid")]
    Valid,
    /// A write to it found no room; all later ones fail until the store grows.
    #[serde(rename = "overflow")]
    Overflow,
    /// Its content is lost.
    #[serde(rename = "invalid")]
    Invalid,
    /// A merge or rollback copies it to the volume.
    #[serde(rename = "merging")]
    Merging,
    /// That stopped at a device that failed.
    #[serde(rename = "merge failed")]
    MergeFailed,
    /// The volume could not be brought up at the start.
    #[serde(rename = "not served")]
    NotServed,
}

impl SnapState {
    /// True while a merge or rollback of the snapshot has not ended.
    pub fn is_merge(self) -> bool {
        matches!(self, SnapState::Merging | SnapState::MergeFailed)
    }
}

impl fmt::Display for SnapState {
    /// As one word, for a column.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SnapState::Valid => "valid",
            SnapState::Overflow => "overflow",
            SnapState::Invalid => "invalid",
            SnapState::Merging => "merging",
            SnapState::MergeFailed => "merge-failed",
            SnapState::NotServed => "not-served",
        })
    }
}

/// A snapshot, as `snap list` shows it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapInfo {
    /// `VOLUME@NAME`.
    pub name: String,
    /// The volume.
    pub volume: String,
    /// How it stands.
    pub state: SnapState,
    /// How much of the store is in use; none if its content is lost.
    pub used_bytes: Option<u64>,
    /// The store's size; none if its content is lost.
    pub size_bytes: Option<u64>,
    /// The chunk size.
    pub chunk_sectors: u32,
    /// The store, as the table names it.
    pub store: String,
    /// When it was made, in seconds since 1970.
    pub created_s: u64,
    /// How much the store grows when it fills up.
    pub grow_bytes: Option<u64>,
    /// Bytes that a merge or rollback has still to copy to the origin.
    pub merge_left_bytes: Option<u64>,
}

declare! {
    /// `snap list`
    SnapList = "snap_list" -> Vec<SnapInfo> {
        /// The volume (default: all)
        name: Option<String>,
    }
    |verb, verbs, caller| verbs.snap_list(verb.name.as_deref(), caller)
}

impl Verbs {
    /// The snapshots of a volume, or all; by volume and age. Those of one volume are shown as
    /// they are at one moment.
    ///
    /// # Errors
    /// There is no such volume, or the server is going away.
    pub fn snap_list(&self, name: Option<&str>, caller: &dyn Caller) -> Outcome<Vec<SnapInfo>> {
        let told = self.told();
        let families: BTreeSet<&str> = match name {
            Some(name) => {
                self.world.volume(name)?;
                [family_of(name)].into()
            }
            None => {
                let snapshots = told.values().filter(|record| record.store.is_some());
                snapshots.map(|record| family_of(&record.name)).collect()
            }
        };
        let mut infos = Vec::new();
        for family in families {
            let changes = self.change(&Named::volume(family).to_look(), "snap list", caller)?;
            let wanted = |record: &&Record| {
                let parent = parent_of(&record.name);
                let asked = name.is_none_or(|name| record.name == name || parent == Some(name));
                let is_there = record.table.is_some() && record.store.is_some();
                asked && is_there && family_of(&record.name) == family
            };
            for record in changes.records().values().filter(wanted) {
                infos.extend(self.info(&changes, record)?);
            }
        }
        infos.sort_by(|a, b| {
            (&a.volume, a.created_s, &a.name).cmp(&(&b.volume, b.created_s, &b.name))
        });
        Ok(infos)
    }

    /// None for a merge whose snapshot is kept: the snapshot tells of it.
    fn info(&self, changes: &Changes, record: &Record) -> Outcome<Option<SnapInfo>> {
        let (Some(store), Some(volume)) = (&record.store, parent_of(&record.name)) else {
            return Ok(None);
        };
        let snap = SnapName { volume: volume.to_owned(), name: store.snapshot.clone() };
        let hidden = is_hidden(&record.name);
        if hidden && changes.record_of(&snap.full()).table.is_some() {
            return Ok(None);
        }
        let words = SnapWords::of(record)?;
        let served = self.world.volume(&record.name).is_ok();
        let report = if served { self.report_of(&record.name)? } else { Report::NONE };
        let share = report.share(snapshot::ALLOCATED);
        let merge = changes.record_of(&merge_of(volume)).store;
        let merging = merge.is_some_and(|merging| merging.snapshot == store.snapshot);
        let merge = if merging && served { Some(self.merge_of(volume)?) } else { None };
        let state = match (merge, report.state()) {
            _ if !served => SnapState::NotServed,
            (Some(Merge::Failed), _) => SnapState::MergeFailed,
            (Some(_), _) => SnapState::Merging,
            (None, Some("Invalid")) => SnapState::Invalid,
            (None, Some("Overflow")) => SnapState::Overflow,
            (None, _) => SnapState::Valid,
        };
        Ok(Some(SnapInfo {
            name: snap.full(),
            volume: snap.volume,
            state,
            used_bytes: share.map(|(used, _)| used * 512),
            size_bytes: share.map(|(_, total)| total * 512),
            chunk_sectors: words.chunk,
            store: store.argument.clone(),
            created_s: store.created_s,
            grow_bytes: store.grow_bytes,
            merge_left_bytes: merge.and_then(|merge| match merge {
                Merge::Left { bytes } => Some(bytes),
                Merge::Done => Some(0),
                Merge::Failed => None,
            }),
        }))
    }
}

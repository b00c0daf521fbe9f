//! `cache volume`: a volume that lies in a cache alone, in the set of a served volume of bcache.
//!
//! Order, and what a kill between two steps leaves:
//! 1. The set has the volume, durably: a message to the served volume, which answers the UUID.
//! 2. `create` of a volume with the table `bcache - CACHE 2 flash UUID`. It records the table, and
//!    answers after that.
//!
//! A kill between them, or before the record of 2, leaves an empty volume in the set that no table
//! names; `cairn dump CACHE` lists it. If 2 fails, the volume is taken out of the set again.

use cairn_outcome::failure::{Outcome, wrong};

use crate::arguments::bytes;
use crate::control::server::{Caller, TheServer};
use crate::names::{parent_of, refuse_at_sign};
use crate::verbs::Verbs;
use crate::verbs::steps::log_undo_failure;
use crate::verbs::verb::{Done, Verb, declare};
use crate::verbs::volume::{VolumeCreate, VolumeMessage};

/// The kind of line whose caches have volumes of their own.
const KIND: &str = "bcache";

declare! {
    /// `cache volume`
    CacheVolume = "cache_volume" -> Done {
        /// A served volume of the set
        #[arg(value_name = "SET")]
        set: String,
        /// The new volume
        name: String,
        /// Its size, like 10G
        #[arg(value_name = "SIZE", value_parser = bytes())]
        size_bytes: u64,
    }
    |verb, verbs, caller| verbs.cache_volume(&verb, caller)
}

impl Verbs {
    /// # Errors
    /// There is no such set, or the volume cannot be made or served.
    pub(in crate::verbs) fn cache_volume(
        &self,
        params: &CacheVolume,
        caller: &dyn Caller,
    ) -> Outcome<Vec<String>> {
        let CacheVolume { set, name, size_bytes } = params;
        refuse_at_sign(name)?;
        let line = self.cache_line(set, None)?;
        if line.kind != KIND || !line.has_cache() {
            let found = format!("a line of {} without a set of bcache", line.kind);
            return Err(wrong(set, "table", found, "a volume of a set of bcache"));
        }
        if parent_of(name).is_some() || self.world.volume(name).is_ok() {
            return Err(wrong(name, "name", "a volume of this name", "a new name"));
        }
        if self.state.is_none() {
            let expected = "a server started with --state FILE or a TOML file, to keep the change";
            return Err(wrong(name, "cache volume state file", "none", expected));
        }
        let sector = line.start;
        let tell = |words: [&str; 2], caller: &dyn Caller| {
            let words = words.map(str::to_owned).into();
            VolumeMessage { name: set.clone(), sector, words }.run(self, caller)
        };
        let uuid = tell(["flash_vol_create", &size_bytes.to_string()], caller)?.text;
        let table = format!("0 {} bcache - {} 2 flash {uuid}", size_bytes / 512, line.cache);
        let create = VolumeCreate { name: name.clone(), table, ..VolumeCreate::default() };
        let created = self.create_volume(&create, caller);
        if created.is_err() {
            log_undo_failure(set, tell(["flash_vol_remove", &uuid], &TheServer).map(drop));
        }
        created
    }
}

//! `snap grow`: a longer file for the store of a snapshot, while it is in use.

use cairn_block::{ConfigError, Disk};
use cairn_outcome::failure::{Losses, Outcome};

use super::store;
use crate::arguments::bytes;
use crate::control::server::Caller;
use crate::names::SnapName;
use crate::reach::Named;
use crate::verbs::Verbs;
use crate::verbs::verb::{Done, declare};

declare! {
    /// `snap grow`
    SnapGrow = "snap_grow" -> Done {
        /// The snapshot
        #[arg(value_name = "VOLUME@NAME")]
        name: String,
        /// The new size of its file, like 10G
        #[arg(long = "size", value_name = "SIZE", value_parser = bytes())]
        size_bytes: u64,
    }
    |verb, verbs, caller| verbs.snap_grow(&verb.name, verb.size_bytes, caller)
}

impl Verbs {
    /// `snap grow`
    ///
    /// # Errors
    /// The store is as it was, unless the line says otherwise. Of kind `Lost`: it is longer, but
    /// acknowledged writes may be lost.
    pub fn snap_grow(&self, name: &str, bytes: u64, caller: &dyn Caller) -> Outcome<()> {
        let snap = SnapName::parse(name)?;
        let changes = self.change_table(&Named::volume(&snap.volume), "snap grow", caller)?;
        let (_, known) = self.record_of_snapshot(&changes, &snap)?;
        let volume = self.world.volume(name)?;
        self.refuse_being_suspended(name)?;
        let by_user = volume.is_suspended() && !self.keeper.is_stuck(name);
        if !by_user {
            // It waits for its requests.
            self.world.refuse_suspended_beneath(name)?;
        }
        store::grow(&known.argument, &self.place(&known.argument), "--size", bytes)?;
        volume.refresh()?;
        // Else its user's resume does it.
        if by_user { Ok(()) } else { self.look_anew(name) }
    }

    /// A resume looks at the fill mark anew, and ends an overflow.
    fn look_anew(&self, name: &str) -> Outcome<()> {
        let mut losses = Losses::default();
        losses.keep(self.hold(name))?;
        losses.keep(self.make_live(name)).map_err(|error| {
            self.note_if_stuck(name);
            let detail = format!("the store is longer, and the snapshot is suspended: {error}");
            ConfigError::new(error.kind, "", detail)
        })?;
        self.keeper.leave_alone(name);
        losses.told()
    }
}

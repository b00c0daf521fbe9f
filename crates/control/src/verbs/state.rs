//! `state show` and `state forget` of a running server.

use cairn_block::ConfigKind;
use cairn_outcome::failure::{Outcome, refused};

use super::Verbs;
use crate::control::server::Caller;
use crate::reach::Named;
use crate::state::{Shown, StateFile, forget, forget_cache, shown};
use crate::verbs::verb::declare;

declare! {
    /// `state show`
    StateShow = "state_show" -> Shown {
        /// The volume (default: all)
        name: Option<String>,
    }
    |verb, verbs, _| verbs.state_show(verb.name.as_deref())
}

declare! {
    /// `state forget`
    StateForget = "state_forget" -> Vec<String> {
        /// A volume that is not served, or a cache, as `state show` names it
        #[arg(value_name = "VOLUME|CACHE")]
        name: String,
    } flags {
        /// Its snapshots and merges go with it, or what only the cache has: that content is lost
        yes,
    }
    |verb, verbs, caller| verbs.state_forget(&verb.name, verb.yes, caller)
}

impl Verbs {
    /// `state show`
    ///
    /// # Errors
    /// There is no state file, or nothing is recorded of the volume.
    pub(super) fn state_show(&self, name: Option<&str>) -> Outcome<Shown> {
        let mut told = shown(self.state_file()?, name)?;
        for volume in &mut told.volumes {
            volume.not_served = self.world.why_not_served(&volume.record.name);
        }
        Ok(told)
    }

    /// `state forget`: returns messages about what was forgotten. A served volume is refused.
    ///
    /// # Errors
    /// Nothing has changed.
    pub(crate) fn state_forget(
        &self,
        name: &str,
        yes: bool,
        caller: &dyn Caller,
    ) -> Outcome<Vec<String>> {
        let named = Named::volume(name).with_device(Some(name));
        let changes = self.change_table(&named, "state forget", caller)?;
        let records = self.state_file()?.records();
        if records.iter().all(|record| record.name != name) && self.world.let_go(name) {
            self.exports.settle(&self.world, name);
            return Ok(vec![format!("{name}: nothing is recorded; its devices are free for now")]);
        }
        if records.iter().all(|record| record.name != name)
            && let Some(told) = self.forget_cache(name, yes)?
        {
            return Ok(vec![told]);
        }
        let forgotten = forget(&records, name, yes)?;
        let served = forgotten.after.iter().find(|gone| self.world.volume(&gone.name).is_ok());
        if let Some(served) = served {
            let found = "a volume that is served";
            let expected = "one that is not (cairn remove takes it away; --state is for a file \
                            without a server)";
            return Err(refused(ConfigKind::Busy, &served.name, "forget", found, expected));
        }
        let names: Vec<String> = forgotten.after.iter().map(|gone| gone.name.clone()).collect();
        changes.record_gone(&self.exports, forgotten.after)?;
        for name in &names {
            self.world.let_go(name);
        }
        self.exports.settle(&self.world, name);
        Ok(forgotten.told)
    }

    /// Gives up the dirty blocks of a recorded cache. Returns the message; none if there is no such
    /// cache.
    fn forget_cache(&self, name: &str, yes: bool) -> Outcome<Option<String>> {
        let Some(caches) = self.caches() else { return Ok(None) };
        let Some((_, told)) = forget_cache(&caches.recorded(), name, yes)? else {
            return Ok(None);
        };
        if caches.is_called_live(name) {
            let found = "a cache in use";
            let expected = "none (cairn replace NAME --discard-dirty takes it away)";
            return Err(refused(ConfigKind::Busy, name, "forget", found, expected));
        }
        // In the list as it is by then: verbs of other volumes change their records.
        self.state_file()?.record_caches(|all| {
            if let Ok(Some((after, _))) = forget_cache(all, name, yes) {
                *all = after;
            }
        })?;
        Ok(Some(told))
    }

    fn state_file(&self) -> Outcome<&StateFile> {
        let expected = "a server started with --state FILE or a TOML file";
        let none = || refused(ConfigKind::Argument, "", "state file", "none", expected);
        self.state.as_ref().ok_or_else(none)
    }

    /// True if the state file has a table of the volume.
    pub(crate) fn is_recorded(&self, name: &str) -> bool {
        self.told().get(name).is_some_and(|record| record.table.is_some())
    }

    /// Refuses to make a volume with the name of a recorded one that could not be brought up.
    ///
    /// # Errors
    /// There is such a record.
    pub(crate) fn refuse_recorded(&self, name: &str) -> Outcome<()> {
        if !self.is_recorded(name) || self.world.volume(name).is_ok() {
            return Ok(());
        }
        let found = "a volume that could not be brought up at the start";
        let expected = "a new name (see cairn state show, or cairn state forget)";
        Err(refused(ConfigKind::Busy, name, "name", found, expected))
    }
}

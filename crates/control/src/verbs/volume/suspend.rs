//! `suspend`: stops admitting requests, and waits for those in flight.

use std::time::Duration;

use cairn_block::{ConfigError, ConfigKind, SuspendMode};
use cairn_outcome::failure::{Outcome, refused};

use crate::control::server::{Caller, TheServer};
use crate::reach::Named;
use crate::under_way::{Doing, Entry};
use crate::verbs::steps::log_undo_failure;
use crate::verbs::verb::{Done, declare};
use crate::verbs::{Verbs, interrupted};

declare! {
    /// `suspend`
    VolumeSuspend = "volume_suspend" -> Done {
        /// The volume
        name: String,
    } flags {
        /// Hold unfinished requests back for the next table instead of finishing them
        noflush,
    }
    |verb, verbs, caller| verbs.suspend(&verb.name, verb.noflush, caller)
}

impl Verbs {
    /// Other verbs continue during the wait, because a request in flight may need one of them. If
    /// the caller hangs up or a `resume` comes during the wait, the volume continues to serve.
    pub(in crate::verbs) fn suspend(
        &self,
        name: &str,
        noflush: bool,
        caller: &dyn Caller,
    ) -> Outcome<()> {
        let turn = self.change(&Named::volume(name), "suspend", caller)?;
        self.refuse_being_suspended(name)?;
        self.refuse_swaps_above(name)?;
        let is_suspended = self.world.volume(name)?.is_suspended();
        let under_way = self.world.under_way().begin(name, Doing::Suspend);
        drop(turn);
        self.keeper.leave_alone(name);
        let mode = if noflush { SuspendMode::NoFlush } else { SuspendMode::Flush };
        let call_off = under_way.call_off().clone();
        let ended = self.world.suspend_unless(name, mode, &call_off, &|| caller.is_gone());
        if is_suspended || !call_off.is_called() {
            return ended.map(drop);
        }
        match ended {
            Ok(false) => drop(under_way),
            // It came too late.
            _ => self.undo_suspend(name, under_way),
        }
        ended?;
        Err(match caller.is_gone() {
            true => interrupted(name, "suspend"),
            false => ConfigError::new(ConfigKind::Busy, name, "suspend: called off by a resume"),
        })
    }

    /// Brings up a volume whose suspend was called off too late. The turn begins before the entry
    /// ends: in between, another user's suspend would succeed, and this would undo it.
    fn undo_suspend(&self, name: &str, under_way: Entry<'_>) {
        let turn = self.change(&Named::volume(name), "suspend", &TheServer);
        self.note_if_stuck(name);
        drop(under_way);
        log_undo_failure(name, turn.and_then(|changes| self.bring_back_in(&changes, name)));
    }

    /// Calls off a suspend or a detach under way, and waits for its end: the volume is live then,
    /// or suspended.
    ///
    /// # Errors
    /// The server is going away, or the caller is gone.
    pub(super) fn call_off_under_way(&self, name: &str, caller: &dyn Caller) -> Outcome<()> {
        const STEP: Duration = Duration::from_millis(10);
        while self.world.under_way().call_off(name) {
            self.refuse_closed()?;
            if caller.is_gone() {
                return Err(interrupted(name, "resume"));
            }
            std::thread::sleep(STEP);
        }
        Ok(())
    }

    /// Refuses to suspend a volume that a table needs which is about to start (U4 of `under_way`).
    pub(super) fn refuse_swaps_above(&self, name: &str) -> Outcome<()> {
        let volume = self.world.volume(name)?;
        let swaps = self.world.under_way().swaps();
        let stands =
            |user: &&String| self.world.volume(user).is_ok_and(|user| user.stands_on(volume.id()));
        let Some(user) = swaps.iter().find(stands) else { return Ok(()) };
        let found = format!("volume '{user}' on it, whose table is being replaced");
        Err(refused(ConfigKind::Busy, name, "state", found, "none"))
    }
}

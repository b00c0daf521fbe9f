//! Giving volumes of a pool another name, or a first one.

use cairn_outcome::failure::{Outcome, wrong};

use super::create::{check_origin, refuse_other_pool};
use super::names::Spot;
use crate::arguments::{bytes, device};
use crate::control::server::Caller;
use crate::names::parent_of;
use crate::reach::Named;
use crate::state::{ExportChanges, Record, Thin};
use crate::thin_line::ThinLine;
use crate::verbs::steps::{Step, log_undo_failure};
use crate::verbs::verb::{Done, declare};
use crate::verbs::{Changes, Verbs};

/// A volume that is renamed.
struct Move {
    from: String,
    to: String,
    line: ThinLine,
}

declare! {
    /// `thin rename`
    ThinRename = "thin_rename" -> Done {
        /// The volume; the pool may be left out where there is a volume of this name
        #[arg(value_name = "[POOL/]VOLUME")]
        name: String,
        /// The new name
        to: String,
        /// The size of a volume that had no name
        #[arg(long = "size", value_name = "SIZE", value_parser = bytes())]
        size_bytes: Option<u64>,
        /// Its external origin, which a pool does not know (default: none, and what it has not
        /// written itself reads as zeros)
        #[arg(long, value_name = "PATH|@VOLUME", value_parser = device())]
        origin: Option<String>,
    }
    |verb, verbs, caller| verbs.thin_rename(&verb, caller)
}

impl Verbs {
    /// `thin rename`: a volume with its snapshots, or one snapshot, or a volume without a name.
    ///
    /// # Errors
    /// Nothing has changed.
    pub fn thin_rename(&self, params: &ThinRename, caller: &dyn Caller) -> Outcome<()> {
        let (said, to) = Spot::parse(&params.to)?.named()?;
        let said = said.as_deref();
        match Spot::parse(&params.name)? {
            Spot::Named { pool, name } => {
                if params.size_bytes.is_some() {
                    let expected = "none: the volume has its size";
                    return Err(wrong(&name, "--size", "a size", expected));
                }
                if let Some(origin) = &params.origin {
                    let expected = "none: the volume has its table";
                    return Err(wrong(&name, "--origin", format!("'{origin}'"), expected));
                }
                self.rename_named(&name, &to, [pool.as_deref(), said], caller)
            }
            Spot::Nameless { pool, id } => {
                refuse_other_pool(&to, &pool, said)?;
                self.give_name(&pool, id, &to, params, caller)
            }
        }
    }

    fn rename_named(
        &self,
        name: &str,
        to: &str,
        said: [Option<&str>; 2],
        caller: &dyn Caller,
    ) -> Outcome<()> {
        let changes =
            self.change_table(&Named::volume(name).and(to).with_pools(), "thin rename", caller)?;
        self.thin_record(&changes, name)?;
        let pool = self.pool_of_line(name, &self.thin_line(name)?, said[0])?;
        refuse_other_pool(to, &pool.name, said[1])?;
        self.refuse_stray(to, &pool.name)?;
        let family = changes.thin_family(name);
        if let (Some(_), Some(first)) = (parent_of(to), family.first()) {
            let expected = "a name without '@': it has snapshots of its own";
            return Err(wrong(name, "name", format!("'{to}', and {first}"), expected));
        }
        let mut moves = Vec::new();
        for from in std::iter::once(name.to_owned()).chain(family) {
            let to = from.replacen(name, to, 1);
            let line = self.thin_line(&from)?;
            self.ready(&from)?;
            self.refuse_taken(&changes, &to)?;
            self.refuse_thin_users(&from)?;
            moves.push(Move { from, to, line });
        }
        self.carry_over(&changes, &moves)
    }

    fn carry_over(&self, changes: &Changes, moves: &[Move]) -> Outcome<()> {
        let mut untold = self.world.untold_losses();
        let down = moves.iter().try_for_each(|one| self.take_down(&one.from));
        self.step(Step::Arranged);
        let mut before = Vec::new();
        let mut after = Vec::new();
        for Move { from, to, .. } in moves {
            let (old, new) = (changes.record_of(from), changes.record_of(to));
            let mut cleared = old.clone();
            cleared.clear();
            after.extend([
                cleared,
                Record { table: old.table.clone(), thin: old.thin.clone(), ..new.clone() },
            ]);
            before.extend([old, new]);
        }
        let exports = self.exports.changes();
        let record = || changes.record_with(&self.exports, after, |it| carry_limits(moves, it));
        let done = down.and_then(|()| record().map(drop)).and_then(|()| {
            self.step(Step::Recorded);
            // Losses are known by names, and the clients know the volume by its new one.
            untold.extend(self.world.untold_losses());
            let has_untold = |one: &&Move| untold.contains(&one.from);
            moves.iter().filter(has_untold).for_each(|one| self.world.tell_of_loss(&one.to));
            moves.iter().try_for_each(|one| self.show(&one.to, &one.line))
        });
        if let Err(error) = done {
            for Move { from, to, line } in moves {
                log_undo_failure(to, self.take_down(to));
                log_undo_failure(from, self.show_again(from, line));
            }
            let undone = changes.record_back(&self.exports, before, &exports);
            log_undo_failure(&moves[0].from, undone);
            return Err(error);
        }
        self.step(Step::Done);
        Ok(())
    }

    /// A volume of the pool that has no name gets one, and what else a pool does not know of it.
    fn give_name(
        &self,
        pool: &str,
        id: u32,
        to: &str,
        said: &ThinRename,
        caller: &dyn Caller,
    ) -> Outcome<()> {
        check_origin(said.origin.as_deref())?;
        let named = Named::volume(to).and(pool).with_device(said.origin.as_deref());
        let changes = self.change_table(&named, "thin rename", caller)?;
        let pool = self.pool(pool)?;
        self.ready(&pool.name)?;
        self.refuse_stray(to, &pool.name)?;
        self.refuse_taken(&changes, to)?;
        let device = self.nameless_device(&changes, &pool, id)?;
        let bytes = said.size_bytes;
        let size = bytes.filter(|bytes| *bytes > 0 && bytes.is_multiple_of(512));
        let Some(bytes) = size else {
            let found = bytes.map_or("none".to_owned(), |bytes| bytes.to_string());
            let expected = "the volume's size in whole sectors, which a pool does not know";
            return Err(wrong(to, "--size", found, expected));
        };
        let (pool_name, origin) = (pool.name.clone(), said.origin.clone());
        let line = ThinLine { sectors: bytes / 512, pool: pool_name, id, origin };
        let before = changes.record_of(to);
        let thin = Some(Thin::of_device(&pool.name, &device, None));
        let record = Record { table: Some(line.text()), thin, ..before.clone() };
        self.set_up_volume(to, &line.text())?;
        changes.record_all(vec![record]).inspect_err(|_| self.remove_unused(to))?;
        self.step(Step::Recorded);
        if let Err(error) = self.serve(to) {
            log_undo_failure(to, self.take_down(to));
            log_undo_failure(to, changes.record_all(vec![before]));
            return Err(error);
        }
        self.step(Step::Done);
        Ok(())
    }
}

/// The limits of the exports that have the names of volumes go with the volumes.
fn carry_limits(moves: &[Move], changes: &mut ExportChanges) {
    for Move { from, to, .. } in moves {
        let limits = changes.take_limits(|export| export == from).remove(from);
        // An export of another volume may have the name.
        let is_taken = changes.added.iter().any(|export| export.name == *to);
        let limits = limits.filter(|_| !is_taken);
        changes.throttles.extend(limits.map(|limits| (to.clone(), limits)));
    }
}

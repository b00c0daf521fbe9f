//! New volumes of a pool: empty ones, and snapshots.

use cairn_backends::{is_image, is_remote};
use cairn_outcome::failure::{Outcome, wrong};
use cairn_targets::thin::{Figures, Plan, ThinDevice};

use super::names::Spot;
use crate::arguments::{bytes, device};
use crate::control::server::Caller;
use crate::live_pool::LivePool;
use crate::names::parent_of;
use crate::reach::Named;
use crate::state::{Record, Thin};
use crate::thin_line::ThinLine;
use crate::verbs::snap::store::check_argument;
use crate::verbs::steps::{Step, log_undo_failure};
use crate::verbs::verb::{Done, declare};
use crate::verbs::{Changes, Verbs};

/// A volume that is being made.
struct Newcomer {
    name: String,
    line: ThinLine,
    /// The device that it is a snapshot of.
    origin: Option<u32>,
}

declare! {
    /// `thin create`
    ThinCreate = "thin_create" -> Done {
        /// The volume; the pool may be left out where there is a volume of this name
        #[arg(value_name = "[POOL/]VOLUME")]
        name: String,
        /// Its size, like 10G
        #[arg(value_name = "SIZE", value_parser = bytes())]
        size_bytes: u64,
        /// Its number in the pool (default: the lowest that is free)
        #[arg(long)]
        id: Option<u64>,
        /// A device that unmapped blocks are read from; it must not change
        #[arg(long, value_name = "PATH|@VOLUME", value_parser = device())]
        origin: Option<String>,
    }
    |verb, verbs, caller| verbs.thin_create(&verb, caller)
}

declare! {
    /// `thin snapshot`
    ThinSnapshot = "thin_snapshot" -> Done {
        /// The snapshot; the pool may be left out. With --of it may have any name
        #[arg(value_name = "[POOL/]VOLUME@NAME")]
        name: String,
        /// The volume it is made of (default: VOLUME of VOLUME@NAME)
        #[arg(long, value_name = "VOLUME")]
        of: Option<String>,
        /// Its number in the pool (default: the lowest that is free)
        #[arg(long)]
        id: Option<u64>,
    }
    |verb, verbs, caller| verbs.thin_snapshot(&verb, caller)
}

impl Verbs {
    /// `thin create`
    ///
    /// # Errors
    /// Nothing has changed.
    pub fn thin_create(&self, params: &ThinCreate, caller: &dyn Caller) -> Outcome<()> {
        let (pool, name) = Spot::parse(&params.name)?.named()?;
        let Some(pool) = pool else {
            let expected = "POOL/NAME: which pool it is to be of";
            return Err(wrong(&name, "name", format!("'{name}'"), expected));
        };
        if parent_of(&name).is_some() {
            let expected = "a name without '@' (cairn thin snapshot makes snapshots)";
            return Err(wrong(&name, "name", format!("'{name}'"), expected));
        }
        if params.size_bytes == 0 || !params.size_bytes.is_multiple_of(512) {
            let expected = "whole sectors of 512 bytes, above 0";
            return Err(wrong(&name, "size", format!("{} bytes", params.size_bytes), expected));
        }
        check_origin(params.origin.as_deref())?;
        let named = Named::volume(&name).and(&pool).with_device(params.origin.as_deref());
        let changes = self.change_table(&named, "thin create", caller)?;
        let pool = self.pool(&pool)?;
        self.ready(&pool.name)?;
        self.refuse_taken(&changes, &name)?;
        let line = ThinLine {
            sectors: params.size_bytes / 512,
            id: changes.new_id(&pool, params.id)?,
            pool: pool.name.clone(),
            origin: params.origin.clone(),
        };
        self.bring_in(&changes, &pool, Newcomer { name, line, origin: None })
    }

    /// `thin snapshot`
    ///
    /// # Errors
    /// Nothing has changed.
    pub fn thin_snapshot(&self, params: &ThinSnapshot, caller: &dyn Caller) -> Outcome<()> {
        let (pool, name) = Spot::parse(&params.name)?.named()?;
        let (said, source) = match (&params.of, parent_of(&name)) {
            (Some(source), _) => Spot::parse(source)?.named()?,
            (None, Some(parent)) => (None, parent.to_owned()),
            (None, None) => {
                let expected = "VOLUME@NAME, or another name and --of VOLUME";
                return Err(wrong(&name, "name", format!("'{name}'"), expected));
            }
        };
        let named = Named::volume(&name).and(&source).with_pools();
        let changes = self.change_table(&named, "thin snapshot", caller)?;
        self.ready(&source)?;
        let of = self.thin_line(&source)?;
        refuse_other_pool(&source, &of.pool, said.as_deref())?;
        let pool = self.pool_of_line(&source, &of, pool.as_deref())?;
        self.ready(&pool.name)?;
        self.refuse_stray(&name, &pool.name)?;
        self.refuse_taken(&changes, &name)?;
        let id = changes.new_id(&pool, params.id)?;
        let (origin, line) = (Some(of.id), ThinLine { id, ..of });
        self.bring_in(&changes, &pool, Newcomer { name, line, origin })
    }

    /// The pool of a volume, which must be the one that was said.
    pub(super) fn pool_of_line(
        &self,
        name: &str,
        line: &ThinLine,
        said: Option<&str>,
    ) -> Outcome<LivePool> {
        refuse_other_pool(name, &line.pool, said)?;
        self.pool(&line.pool)
    }

    fn bring_in(&self, changes: &Changes, pool: &LivePool, new: Newcomer) -> Outcome<()> {
        let Newcomer { name, line, origin } = &new;
        let plan = self.plan(changes, pool)?;
        let thin = Thin {
            pool: pool.name.clone(),
            id: line.id,
            transaction_id: plan.transaction_id,
            creation_time: plan.time + u32::from(origin.is_some()),
            created_s: Some(self.world.unix_time_s()),
        };
        let before = changes.record_of(name);
        let record = Record { table: Some(line.text()), thin: Some(thin), ..before.clone() };
        self.set_up_volume(name, &line.text())?;
        changes.record_all(vec![record]).inspect_err(|_| self.remove_unused(name))?;
        self.step(Step::Recorded);
        if let Err(error) = self.create_in_pool(pool, line.id, *origin, plan) {
            self.remove_unused(name);
            log_undo_failure(name, changes.record_all(vec![before]));
            return Err(error);
        }
        self.step(Step::Pooled);
        if let Err(error) = self.serve(name) {
            log_undo_failure(name, self.take_down(name));
            log_undo_failure(name, pool.delete(&self.world, line.id));
            log_undo_failure(name, changes.record_all(vec![before]));
            return Err(error);
        }
        self.step(Step::Arranged);
        self.step(Step::Done);
        Ok(())
    }

    /// Brings up a volume that was set up, with its export.
    pub(super) fn serve(&self, name: &str) -> Outcome<()> {
        self.make_live(name)?;
        self.exports.add_volume(&self.world, name)
    }

    /// A volume with its export.
    pub(super) fn show(&self, name: &str, line: &ThinLine) -> Outcome<()> {
        self.bring_up_volume(name, &line.text())?;
        self.exports.add_volume(&self.world, name)
    }

    /// The pool's counters, for a device that is about to be created. In a pool that `pool create`
    /// made its creation raises the transaction id, so that no other device has the same; in
    /// another pool a user's program may count on it.
    pub(super) fn plan(&self, changes: &Changes, pool: &LivePool) -> Outcome<Plan> {
        let raises = changes.record_of(&pool.name).pool_made_s.is_some();
        let Figures { transaction_id, time, .. } = pool.figures()?;
        Ok(Plan { transaction_id, time, raises })
    }

    /// Creates a device in a pool, durably.
    pub(super) fn create_in_pool(
        &self,
        pool: &LivePool,
        id: u32,
        origin: Option<u32>,
        plan: Plan,
    ) -> Outcome<ThinDevice> {
        pool.change(&self.world, async move |env, pool| match origin {
            None => pool.create_thin(env, id, plan).await,
            Some(origin) => pool.create_snapshot(env, id, origin, plan).await,
        })
    }
}

/// Refuses an external origin that no table can name.
pub(super) fn check_origin(origin: Option<&str>) -> Outcome<()> {
    let Some(origin) = origin else { return Ok(()) };
    let is_word = !origin.contains(char::is_whitespace);
    let is_elsewhere = is_remote(origin) || is_image(origin);
    if origin.starts_with('@') || is_elsewhere && is_word {
        return Ok(());
    }
    check_argument(origin)
}

/// Refuses a name with another pool in front than that of the volume.
pub(super) fn refuse_other_pool(name: &str, pool: &str, said: Option<&str>) -> Outcome<()> {
    let Some(said) = said.filter(|said| *said != pool) else { return Ok(()) };
    let found = format!("{pool}, not {said}");
    Err(wrong(name, "pool", found, "the pool of the volume, or none said"))
}

#[cfg(test)]
mod tests {
    use super::check_origin;

    #[test]
    fn an_external_origin_is_a_path_a_volume_or_elsewhere() {
        let good =
            ["/img", "@base", "nbd://h/x", "rbd:vms/base@gold", "https://h/x.raw", "qcow2:/i"];
        assert!(good.iter().all(|origin| check_origin(Some(origin)).is_ok()));
        for wrong in ["", "mem:1M", "rbd:vms/a b", "https://h/a b", "a b", "qcow2:a b"] {
            check_origin(Some(wrong)).expect_err(wrong);
        }
    }
}

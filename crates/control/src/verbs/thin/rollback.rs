//! `thin rollback`: a volume gets the content of one of its snapshots at once.

use cairn_block::SuspendMode;
use cairn_outcome::failure::{Losses, Outcome, wrong};
use cairn_targets::thin::ThinDevice;

use super::create::refuse_other_pool;
use super::names::Spot;
use crate::control::server::Caller;
use crate::live_pool::LivePool;
use crate::names::{SnapName, parent_of};
use crate::reach::Named;
use crate::state::{Record, Thin};
use crate::thin_line::ThinLine;
use crate::verbs::steps::{Step, log_undo_failure};
use crate::verbs::verb::{Done, declare};
use crate::verbs::{Changes, Verbs};

/// The parameters of a rollback.
struct Rollback {
    volume: String,
    /// What the volume is now, and what it is to be.
    former: ThinLine,
    line: ThinLine,
    /// The device of `line`.
    made: ThinDevice,
    /// The name under which the former is kept.
    keep: Option<String>,
}

declare! {
    /// `thin rollback`
    ThinRollback = "thin_rollback" -> Done {
        /// The snapshot; the pool may be left out
        #[arg(value_name = "[POOL/]VOLUME@NAME")]
        name: String,
        /// Keep what the volume was under this name
        #[arg(long, value_name = "@NAME")]
        keep: Option<String>,
    }
    |verb, verbs, caller| verbs.thin_rollback(&verb, caller)
}

impl Verbs {
    /// `thin rollback`
    ///
    /// # Errors
    /// Nothing has changed, unless the message says otherwise.
    pub fn thin_rollback(&self, params: &ThinRollback, caller: &dyn Caller) -> Outcome<()> {
        let (said, name) = Spot::parse(&params.name)?.named()?;
        let SnapName { volume, .. } = SnapName::parse(&name)?;
        let kept = params.keep.as_deref().map(|keep| full_name(&volume, keep)).transpose()?;
        let keep = kept.as_ref().map_or(volume.as_str(), |(_, full)| full);
        let named = Named::volume(&volume).and(&name).and(keep).with_pools();
        let changes = self.change_table(&named, "thin rollback", caller)?;
        self.ready(&volume)?;
        self.world.refuse_relied_on(&volume)?;
        let (former, source) = (self.thin_line(&volume)?, self.thin_line(&name)?);
        let pool = self.pool_of_line(&volume, &former, said.as_deref())?;
        self.ready(&pool.name)?;
        if source.pool != former.pool {
            let found = format!("of pool {}", source.pool);
            return Err(wrong(&name, "pool", found, format!("a snapshot of {volume}")));
        }
        let keep = match kept {
            Some((said, full)) => {
                refuse_other_pool(&full, &pool.name, said.as_deref())?;
                self.refuse_taken(&changes, &full)?;
                Some(full)
            }
            None => None,
        };
        let id = changes.new_id(&pool, None)?;
        let line = ThinLine { id, sectors: former.sectors, ..source.clone() };
        let plan = self.plan(&changes, &pool)?;
        let made = self.create_in_pool(&pool, id, Some(source.id), plan)?;
        let act = Rollback { volume, former, line, made, keep };
        self.step(Step::Pooled);
        let before = changes.record_of(&act.volume);
        if let Err(error) = self.exchange(&changes, &pool, &act) {
            log_undo_failure(&act.volume, self.world.clear(&act.volume));
            log_undo_failure(&act.volume, self.make_live(&act.volume));
            self.note_if_stuck(&act.volume);
            if changes.is_sure() {
                log_undo_failure(&act.volume, pool.delete(&self.world, id));
            }
            return Err(error);
        }
        let mut losses = Losses::default();
        if let Err(error) = losses.keep(self.make_live(&act.volume)) {
            let error = self.go_back(&changes, before, error);
            self.note_if_stuck(&act.volume);
            if let Some(keep) = &act.keep {
                let mut kept = changes.record_of(keep);
                kept.clear();
                log_undo_failure(keep, changes.record_fact(kept));
            }
            log_undo_failure(&act.volume, pool.delete(&self.world, id));
            return Err(error);
        }
        self.step(Step::Resumed);
        self.end_former(&pool, &act);
        self.step(Step::Done);
        losses.told()
    }

    /// Steps 2 and 3.
    fn exchange(&self, changes: &Changes, pool: &LivePool, act: &Rollback) -> Outcome<()> {
        let Rollback { volume, former, line, made, keep } = act;
        let thin_of =
            |device: &ThinDevice, created_s| Some(Thin::of_device(&pool.name, device, created_s));
        let record = changes.record_of(volume);
        let created_s = record.thin.as_ref().and_then(|thin| thin.created_s);
        let mut records = Vec::new();
        if let Some(keep) = keep {
            let kept = pool.device(former.id)?;
            let thin = kept.and_then(|device| thin_of(&device, created_s));
            let table = Some(former.text());
            records.push(Record { table, thin, ..changes.record_of(keep) });
        }
        // A volume that is configured has its name from there.
        let named = record.configured.is_none();
        let now_s = self.world.unix_time_s();
        let thin = if named { thin_of(made, Some(now_s)) } else { None };
        records.push(Record { table: Some(line.text()), thin, ..record });
        // Requests under way need not succeed: what they wrote is lost anyway.
        self.world.hold(volume, SuspendMode::NoFlush)?;
        self.step(Step::Suspended);
        self.world.load(volume, &line.text())?;
        self.step(Step::Arranged);
        changes.record_all(records)?;
        self.step(Step::Recorded);
        Ok(())
    }

    /// Step 5. Whatever comes of it, the volume is rolled back.
    fn end_former(&self, pool: &LivePool, act: &Rollback) {
        match &act.keep {
            Some(keep) => log_undo_failure(keep, self.show(keep, &act.former)),
            None => log_undo_failure(&pool.name, pool.delete(&self.world, act.former.id)),
        }
    }
}

/// The name under which a rollback of `volume` keeps what that was, `@NAME` or in full, and the
/// pool if it was said.
fn full_name(volume: &str, keep: &str) -> Outcome<(Option<String>, String)> {
    let (said, full) = match keep.strip_prefix('@') {
        Some(own) => (None, format!("{volume}@{own}")),
        None => Spot::parse(keep)?.named()?,
    };
    Spot::parse(&full)?.named()?;
    match parent_of(&full).filter(|parent| *parent != volume) {
        Some(parent) => Err(wrong(&full, "--keep", parent, format!("a snapshot of {volume}"))),
        None => Ok((said, full)),
    }
}

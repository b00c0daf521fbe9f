//! Taking a snapshot away, and giving a volume its own table back.

use cairn_block::ConfigKind;

use super::names::{SnapName, parent_of, real_of};
use super::{Step, also, store};
use crate::failure::{Outcome, refused};
use crate::state::Record;
use crate::thin::line::ThinLine;
use crate::verbs::{Changes, Verbs};

impl Verbs {
    /// `snap remove`
    ///
    /// # Errors
    /// The snapshot is there as before.
    pub fn snap_remove(&self, name: &str) -> Outcome<()> {
        let snap = SnapName::parse(name)?;
        let mut changes = self.change_table(&snap.volume, "snap remove")?;
        self.ready(&snap.volume)?;
        let (_, known) = self.record_of_snapshot(&changes, &snap)?;
        self.world.refuse_users(&snap.full())?;
        let before = changes.records_of(&[&snap.full(), &snap.volume, &real_of(&snap.volume)]);
        let after = changes.without(&snap);
        let taken = self.take_out(&mut changes, &snap, after);
        if taken.is_err() && changes.record_of(&snap.full()).table.is_some() {
            also(&snap.volume, self.put_back(&mut changes, &snap, before));
        }
        taken?;
        if known.made {
            store::discard(&self.place(&known.argument));
        }
        self.step(Step::Done);
        Ok(())
    }

    /// Ends the snapshot while its volume is suspended; with the last one the volume gets its own
    /// table back. On the way `after` is recorded.
    pub(super) fn take_out(
        &self,
        changes: &mut Changes,
        snap: &SnapName,
        after: Vec<Record>,
    ) -> Outcome<()> {
        let (volume, full, real) = (&snap.volume, snap.full(), real_of(&snap.volume));
        self.hold(volume)?;
        self.step(Step::Suspended);
        self.take_down(&full)?;
        let last = changes.snapshots_of(volume).iter().all(|name| *name == snap.name);
        let own = changes.own_table(volume).filter(|_| last && self.world.volume(&real).is_ok());
        match &own {
            Some(own) => {
                self.hold(&real)?;
                self.world.load(volume, own)?;
            }
            None => self.world.clear(volume)?,
        }
        self.step(Step::Arranged);
        changes.record_all(after)?;
        self.step(Step::Recorded);
        self.make_live(volume)?;
        self.step(Step::Resumed);
        if own.is_some() { self.world.remove(&real) } else { Ok(()) }
    }

    /// After a failure: the snapshot as it was.
    fn put_back(&self, changes: &mut Changes, snap: &SnapName, before: Vec<Record>) -> Outcome<()> {
        changes.record_all(before)?;
        self.world.clear(&snap.volume)?;
        self.assemble(changes, &snap.volume)
    }

    /// Refuses to change a volume's table past its snapshots.
    ///
    /// # Errors
    /// It has some, or is one.
    pub fn refuse_snapshots(&self, name: &str, verb: &str, hint: &str) -> Outcome<()> {
        // A snapshot in a pool is no part of its volume: it stands alone.
        let thin = self.world.volume(name).is_ok_and(|it| ThinLine::of_volume(&it).is_some());
        let part = !thin && parent_of(name).is_some_and(|parent| name != real_of(parent));
        if part || self.world.volume(&real_of(name)).is_ok() {
            let found = if part { "a snapshot" } else { "snapshots of it" };
            return Err(refused(ConfigKind::Busy, name, verb, found, hint));
        }
        Ok(())
    }
}

impl Changes {
    /// The records when `snap` is gone.
    pub(super) fn without(&self, snap: &SnapName) -> Vec<Record> {
        let volume = &snap.volume;
        let mut gone = self.record_of(&snap.full());
        gone.clear();
        let mut after = vec![gone];
        if self.snapshots_of(volume).iter().all(|name| *name == snap.name) {
            after.extend(self.own_again(volume));
        }
        after
    }

    /// The records of a volume that has its own table again.
    pub(super) fn own_again(&self, volume: &str) -> Vec<Record> {
        let table = self.own_table(volume);
        let mut real = self.record_of(&real_of(volume));
        real.clear();
        vec![Record { table, ..self.record_of(volume) }, real]
    }
}

//! What to bring up, in which order: configured volumes and messages, and what the state file
//! recorded over them.
//!
//! A volume is brought up with all its lines at its place in the order, or earlier if a volume
//! before it names it with `@`. A record wins over the configuration it was made under; if the
//! configuration has changed since, the start is refused rather than either lost.
//!
//! A volume with snapshots is brought up as a whole, whoever names a part of it first: its own
//! table, then its snapshots, then a merge, then what stands on that, then the volume itself. So
//! nothing can write to an origin before every recorded snapshot of it is there. The store of a
//! recorded snapshot is never formatted, and marked invalid if the record says that it ended; nor is
//! the metadata of a pool that a recorded volume is of.

use std::collections::HashSet;

use cairn_block::ConfigKind;

use super::args::{MessageStep, Step, parse_message, split_table};
use super::config::{self, Config};
use crate::failure::{Outcome, refused};
use crate::pool;
use crate::snap::names::{parent_of, real_of, refuse_at_sign};
use crate::snap::{assemble, store};
use crate::state::{Record, StateFile};
use crate::thin::line::ThinLine;
use crate::thin::lost_name;
use crate::world::{World, of_volume};

/// One act of the start.
#[derive(Debug, PartialEq, Eq)]
enum Act {
    /// Bring up a volume.
    Volume(String),
    /// Send a message.
    Message(MessageStep),
}

/// What was brought up, or tried.
#[derive(Default)]
struct Begun<'a> {
    all: HashSet<&'a str>,
    /// Of these, names that stand for nothing any more.
    dropped: HashSet<&'a str>,
}

/// What to bring up.
#[derive(Debug, Default)]
pub struct Plan {
    acts: Vec<Act>,
    volumes: Vec<Record>,
    /// Snapshots whose content is lost although their stores may look valid.
    lost: HashSet<String>,
}

impl Plan {
    /// The plan of a configuration and a command line.
    ///
    /// # Errors
    /// A message does not parse, or a name is that of a snapshot.
    pub fn of(config: &Config, steps: &[Step]) -> Outcome<Plan> {
        let mut plan = Plan::default();
        for config::Volume { name, table, messages } in &config.volumes {
            refuse_at_sign(name)?;
            plan.append(name, table);
            plan.acts.extend(messages.iter().cloned().map(Act::Message));
        }
        for step in steps {
            match step {
                Step::Table(text) => {
                    let (name, lines) = split_table(text);
                    refuse_at_sign(name)?;
                    plan.append(name, lines);
                }
                Step::Message(text) => plan.acts.push(Act::Message(parse_message(text)?)),
            }
        }
        Ok(plan)
    }

    fn append(&mut self, name: &str, lines: &str) {
        if let Some(known) = self.volumes.iter_mut().find(|known| known.name == name) {
            let text = format!("{}\n{}", known.table.as_deref().unwrap_or_default(), lines);
            *known = Record::as_configured(name, Some(&text));
            return;
        }
        self.volumes.push(Record::as_configured(name, Some(lines)));
        self.acts.push(Act::Volume(name.to_owned()));
    }

    /// Lays what the state file recorded over the configuration.
    ///
    /// # Errors
    /// The configuration has changed since.
    pub fn restore(&mut self, state: &StateFile) -> Outcome<()> {
        let path = state.path().display().to_string();
        for record in state.records() {
            let known = self.volumes.iter_mut().find(|known| known.name == record.name);
            let configured = known.as_ref().and_then(|known| known.configured.as_ref());
            if configured != record.configured.as_ref() {
                let found = "another table configured than when a verb changed it";
                let expected = format!("the former one, or no record of it in {path}");
                return Err(refused(ConfigKind::Argument, &record.name, "state", found, expected));
            }
            if state.is_lost(&record.name) {
                self.lost.insert(record.name.clone());
            }
            match known {
                Some(known) => *known = record,
                None => {
                    self.acts.push(Act::Volume(record.name.clone()));
                    self.volumes.push(record);
                }
            }
        }
        Ok(())
    }

    /// Every volume with its tables.
    pub fn records(&self) -> &[Record] {
        &self.volumes
    }

    /// The volumes that will be there.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let there = self.volumes.iter().filter(|record| record.table.is_some());
        there.map(|record| record.name.as_str())
    }

    /// Acts. Names of volumes that their pools do not have any more are dropped, with a notice:
    /// answers their records as they are now.
    ///
    /// # Errors
    /// The first refusal; what is up then stays up.
    pub fn bring_up(&mut self, world: &World) -> Outcome<Vec<Record>> {
        let dropped = self.act(world)?;
        let dropped: HashSet<String> = dropped.into_iter().map(str::to_owned).collect();
        let gone = self.volumes.iter_mut().filter(|record| dropped.contains(&record.name));
        Ok(gone
            .map(|record| {
                record.clear();
                record.clone()
            })
            .collect())
    }

    /// Answers the names that were dropped.
    fn act(&self, world: &World) -> Outcome<HashSet<&str>> {
        let mut begun = Begun::default();
        for act in &self.acts {
            match act {
                Act::Volume(name) => self.ensure_up(world, name, &mut begun)?,
                Act::Message(step) if self.is_removed(&step.volume) => {
                    tracing::info!("{}: removed at run time: message left out", step.volume);
                }
                Act::Message(step) => {
                    let real = real_of(&step.volume);
                    let volume = if self.is_there(&real) { &real } else { &step.volume };
                    let text = world.message(volume, step.sector, &step.words)?;
                    if !text.is_empty() {
                        tracing::info!("{}: {text}", step.volume);
                    }
                }
            }
        }
        Ok(begun.dropped)
    }

    fn is_there(&self, name: &str) -> bool {
        self.names().any(|there| there == name)
    }

    fn is_removed(&self, name: &str) -> bool {
        self.volumes.iter().any(|record| record.name == name && record.table.is_none())
    }

    /// A volume that a verb has put into this pool: it was there before this start.
    fn held_by(&self, pool: &str) -> Option<&str> {
        let mut recorded = self.volumes.iter().filter(|record| record.table != record.configured);
        let is_held = |record: &&Record| {
            let line = record.table.as_deref().and_then(ThinLine::of_table);
            line.is_some_and(|line| line.pool == pool)
        };
        recorded.find(is_held).map(|record| record.name.as_str())
    }

    fn ensure_up<'a>(&'a self, world: &World, name: &str, begun: &mut Begun<'a>) -> Outcome<()> {
        let family = parent_of(name).unwrap_or(name);
        if self.is_there(&real_of(family)) {
            for member in assemble::family(&self.volumes, family) {
                self.ensure_one_up(world, &member.name, begun)?;
            }
        }
        self.ensure_one_up(world, name, begun)
    }

    fn ensure_one_up<'a>(
        &'a self,
        world: &World,
        name: &str,
        begun: &mut Begun<'a>,
    ) -> Outcome<()> {
        let Some(record) = self.volumes.iter().find(|record| record.name == name) else {
            return Ok(());
        };
        let Some(table) = &record.table else { return Ok(()) };
        if !begun.all.insert(&record.name) {
            return Ok(());
        }
        for lower in table.split_whitespace().filter_map(|word| word.strip_prefix('@')) {
            match parent_of(lower) == parent_of(name).or(Some(name)) {
                true => self.ensure_one_up(world, lower, begun)?,
                false => self.ensure_up(world, lower, begun)?,
            }
        }
        if let Some(store) = &record.store {
            let (argument, path) = (&store.argument, world.place(&store.argument));
            let sound = store::refuse_blank(argument, &path).and_then(|()| {
                let lost = self.lost.contains(name);
                if lost { store::mark_lost(argument, &path, world.read_only()) } else { Ok(()) }
            });
            sound.map_err(|error| of_volume(name, error))?;
        }
        if let Some(held) = self.held_by(name) {
            let sound = pool::refuse_blank(world, name, table, held);
            sound.map_err(|error| of_volume(name, error))?;
        }
        if let Some(why) = lost_name(world, record)? {
            tracing::warn!("{name}: the name is dropped: {why}; its table was '{table}'");
            begun.dropped.insert(&record.name);
            return Ok(());
        }
        world.create(name)?;
        world.load(name, table)?;
        world.resume(name)?;
        if let Some(inactive) = &record.inactive
            && let Err(error) = world.load(name, inactive)
        {
            tracing::warn!("the table that waited for a resume is not loaded: {error}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::{Act, Plan};
    use crate::serve::args::{Step, parse_message};
    use crate::serve::config::Config;
    use crate::state::{Record, StateFile};

    fn plan(steps: &[Step]) -> Plan {
        Plan::of(&Config::default(), steps).unwrap()
    }

    fn table(text: &str) -> Step {
        Step::Table(text.to_owned())
    }

    #[test]
    fn a_name_given_again_appends_lines_at_its_first_place() {
        let message = Step::Message("a 0 frob".to_owned());
        let plan = plan(&[table("a=0 8 zero"), message, table("0 8 zero"), table("a=8 8 zero")]);
        assert_eq!(plan.volumes[0].table.as_deref(), Some("0 8 zero\n8 8 zero"));
        let message = Act::Message(parse_message("a 0 frob").unwrap());
        assert_eq!(plan.acts, [Act::Volume("a".into()), message, Act::Volume("default".into())]);
    }

    #[test]
    fn a_record_wins_unless_the_configuration_has_changed() {
        let folder = tempfile::tempdir().unwrap();
        let state = StateFile::open(&folder.path().join("s")).unwrap();
        let live = Some("0 16 zero".to_owned());
        let record = Record { table: live, ..Record::as_configured("a", Some("0 8 zero")) };
        state.record(vec![record.clone()]).unwrap();
        let mut same = plan(&[table("a=0 8 zero")]);
        same.restore(&state).unwrap();
        assert_eq!(same.records(), [record]);
        for steps in [&[table("a=0 9 zero")][..], &[]] {
            let line = plan(steps).restore(&state).unwrap_err().to_string();
            assert!(line.starts_with("a: state: found another table configured"), "{line}");
        }
    }
}

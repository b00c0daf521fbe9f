//! `cache get` and `cache set`: the attributes of a cache, and the options of its line.
//!
//! bcache takes a message for each attribute. writecache has options in its table line, so a change
//! is a swap to the same table with other options: the cache keeps its content, and clients see a
//! pause.

use cairn_block::{ConfigKind, TableLine};
use cairn_outcome::failure::{Outcome, refused, wrong};
use cairn_targets::spec::{Opt, Spec, words_of};

use super::CacheLine;
use crate::control::server::Caller;
use crate::reach::Named;
use crate::report::{Fields, attributes_of};
use crate::under_way::Doing;
use crate::verbs::Verbs;
use crate::verbs::verb::{Done, Verb, declare};
use crate::verbs::volume::{VolumeMessage, VolumeReplace};

/// The option that says which cache of a device it is: another value means another cache.
const PLACE: &str = "start_sector";
/// The messages that set an attribute and answer one.
const SET: &str = "set";
const GET: &str = "get";

declare! {
    /// `cache get`
    CacheGet = "cache_get" -> Fields {
        /// The volume
        name: String,
        /// The attribute (default: all, each as NAME=VALUE)
        #[arg(value_name = "ATTRIBUTE")]
        attribute: Option<String>,
        /// The first sector of the line with the cache (needed if there are several)
        #[arg(long)]
        sector: Option<u64>,
    }
    |verb, verbs, _| verbs.cache_get(&verb.name, verb.attribute.as_deref(), verb.sector)
}

declare! {
    /// `cache set`
    CacheSet = "cache_set" -> Done {
        /// The volume
        name: String,
        /// What to set
        #[arg(required = true, value_name = "NAME=VALUE")]
        settings: Vec<String>,
        /// The first sector of the line with the cache (needed if there are several)
        #[arg(long)]
        sector: Option<u64>,
    }
    |verb, verbs, caller| verbs.cache_set(&verb, caller)
}

impl Verbs {
    fn cache_get(&self, name: &str, wanted: Option<&str>, sector: Option<u64>) -> Outcome<Fields> {
        let line = self.cache_line(name, sector)?;
        let mut fields = attributes_of(&*line.target);
        let Some(wanted) = wanted else { return Ok(fields) };
        if let Some(known) = fields.keys().find(|known| known.eq_ignore_ascii_case(wanted)).cloned()
        {
            fields.retain(|name, _| *name == known);
            return Ok(fields);
        }
        match self.text_of(name, &line, wanted) {
            Some(text) => Ok(Fields::from_iter([(wanted.to_ascii_lowercase(), text.into())])),
            None => {
                let names = fields.keys().cloned().collect::<Vec<_>>().join(", ");
                Err(wrong(name, "attribute", format!("'{wanted}'"), format!("one of {names}")))
            }
        }
    }

    /// What the target answers to the message `get` that is no attribute: several lines of text.
    fn text_of(&self, name: &str, line: &CacheLine, wanted: &str) -> Option<String> {
        let takes_messages =
            cairn_targets::spec(&line.kind).is_some_and(|spec| spec.messages.contains(&GET));
        if !takes_messages {
            return None;
        }
        let volume = self.beneath_snapshots(name).ok()?;
        let words = [GET, wanted].map(str::to_owned);
        self.world.message(volume.volume(), line.start, &words).ok()
    }

    /// Sets attributes by messages, one after the other, or options of the line, all at once.
    pub(in crate::verbs) fn cache_set(
        &self,
        params: &CacheSet,
        caller: &dyn Caller,
    ) -> Outcome<Vec<String>> {
        let CacheSet { name, settings, sector } = params;
        let settings = settings.iter().map(|setting| pair_of(name, setting));
        let settings = settings.collect::<Outcome<Vec<_>>>()?;
        let line = self.cache_line(name, *sector)?;
        let takes_messages =
            cairn_targets::spec(&line.kind).is_some_and(|spec| spec.messages.contains(&SET));
        if !takes_messages {
            return self.set_options(name, &line, &settings, caller);
        }
        for (attribute, value) in settings {
            let words = [SET, attribute, value].map(str::to_owned).into();
            let (name, sector) = (name.clone(), line.start);
            VolumeMessage { name, sector, words }.run(self, caller)?;
        }
        Ok(Vec::new())
    }

    /// Swaps to the table with other options in one line.
    fn set_options(
        &self,
        name: &str,
        line: &CacheLine,
        settings: &[(&str, &str)],
        caller: &dyn Caller,
    ) -> Outcome<Vec<String>> {
        let volume = self.beneath_snapshots(name)?;
        let beneath = volume.volume().to_owned();
        let changes = self.change_table(&Named::volume(&beneath), "cache set", caller)?;
        let table = changes.record_of(&beneath).table.unwrap_or_default();
        let mut lines = TableLine::parse_all(&table)?;
        let is_it = |other: &&mut TableLine| {
            other.start.0 == line.start && other.target.eq_ignore_ascii_case(&line.kind)
        };
        let Some(changed) = lines.iter_mut().find(is_it) else {
            let found = "another table than a moment ago";
            return Err(refused(ConfigKind::Busy, name, "table", found, "the same one"));
        };
        let before = changed.clone();
        for (option, value) in settings {
            set_option(name, changed, option, value)?;
        }
        if *changed == before {
            return Ok(Vec::new());
        }
        let table = lines.iter().map(|line| format!("{line}\n")).collect();
        let params = VolumeReplace { name: beneath, table, ..VolumeReplace::default() };
        self.swap_in_turn(changes, Doing::Set, &params, caller)
    }
}

/// The two sides of `NAME=VALUE`.
fn pair_of<'a>(name: &str, setting: &'a str) -> Outcome<(&'a str, &'a str)> {
    let pair =
        setting.split_once('=').filter(|(name, value)| !name.is_empty() && !value.is_empty());
    pair.ok_or_else(|| wrong(name, "cache set", format!("'{setting}'"), "NAME=VALUE"))
}

/// Gives an option of a line another value. One without a value is `on` or `off`.
fn set_option(name: &str, line: &mut TableLine, word: &str, value: &str) -> Outcome<()> {
    let printed = line.clone();
    let Some((spec, words)) = words_of(&printed) else { return Ok(()) };
    let known = spec.option(word).filter(|(_, option)| is_settable(option));
    let Some((at, option)) = known else {
        let found = format!("'{word}'");
        return Err(wrong(name, "attribute", found, format!("one of {}", settable(spec))));
    };
    let mut options: Vec<Option<Vec<String>>> = (words.options.iter())
        .map(|values| Some(values.as_ref()?.iter().map(|&value| value.to_owned()).collect()))
        .collect();
    let refuse = |expected: &str| Err(wrong(name, option.word, format!("'{value}'"), expected));
    options[at] = match (option.values, value.to_ascii_lowercase().as_str()) {
        ([], "on") => Some(Vec::new()),
        ([], "off") => None,
        ([], _) => return refuse("on or off"),
        ([number, ..], _) if number.kind.number(value).is_none() => {
            return refuse(&number.kind.expected());
        }
        _ => Some(vec![value.to_owned()]),
    };
    let other = option.instead_of.and_then(|other| spec.option(other));
    if let Some((other, _)) = other.filter(|_| options[at].is_some()) {
        options[other] = None;
    }
    let joined = spec.join(words.fixed.iter().map(|(_, word)| word), options.into_iter(), false);
    line.args = joined.split(' ').map(str::to_owned).collect();
    Ok(())
}

/// True if a change leaves the line the same cache.
fn is_settable(option: &Opt) -> bool {
    option.word != PLACE && option.values.len() <= 1
}

fn settable(spec: &Spec) -> String {
    let options = spec.options().filter(|option| is_settable(option));
    options.map(|option| option.word).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::{pair_of, set_option};
    use cairn_block::TableLine;

    fn set(line: &str, settings: &[&str]) -> Result<String, String> {
        let mut line = TableLine::parse(line).expect("a line");
        for setting in settings {
            let (word, value) = pair_of("v", setting).map_err(|error| error.to_string())?;
            set_option("v", &mut line, word, value).map_err(|error| error.to_string())?;
        }
        Ok(line.to_string())
    }

    #[test]
    fn options_of_a_line_are_set_replaced_and_dropped() {
        let line = "0 8 writecache s /o /c 4096 2 high_watermark 60";
        for (settings, expected) in [
            (&["low_watermark=20"][..], "4 high_watermark 60 low_watermark 20"),
            (&["HIGH_watermark=70"], "2 high_watermark 70"),
            (&["cleaner=on"], "3 high_watermark 60 cleaner"),
            (&["cleaner=on", "cleaner=off"], "2 high_watermark 60"),
        ] {
            let expected = format!("0 8 writecache s /o /c 4096 {expected}");
            assert_eq!(set(line, settings), Ok(expected));
        }
        let pmem = "0 8 writecache p /o /c 4096 1 fua";
        let expected = "0 8 writecache p /o /c 4096 1 nofua".to_owned();
        assert_eq!(set(pmem, &["nofua=on"]), Ok(expected));
    }

    #[test]
    fn settings_that_are_wrong_are_named_with_what_was_expected() {
        let line = "0 8 writecache s /o /c 4096 0";
        for (setting, expected) in [
            ("cleaner", "v: cache set: found 'cleaner', expected NAME=VALUE"),
            ("=1", "v: cache set: found '=1', expected NAME=VALUE"),
            ("cleaner=1", "v: cleaner: found '1', expected on or off"),
            ("high_watermark=101", "v: high_watermark: found '101', expected a number from 0 to"),
            ("start_sector=8", "v: attribute: found 'start_sector', expected one of high_water"),
            ("frob=8", "v: attribute: found 'frob', expected one of high_watermark, low_water"),
        ] {
            let refused = set(line, &[setting]).expect_err(setting);
            assert!(refused.starts_with(expected), "{refused}");
        }
    }
}

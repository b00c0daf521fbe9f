//! The report, the status line and the messages.

use cairn_block::{Field, MessageError, Report, Unit, Value};

use super::Clone;
use super::config::{BATCH, NO_HYDRATION, NO_PASSDOWN, THRESHOLD};

/// The fields of the status line.
pub(super) const STATUS_FIELDS: &[Field] = &[
    Field::new("metadata_block_size", Unit::Sectors),
    Field::new("used/total", Unit::Blocks),
    Field::new("region_size", Unit::Sectors),
    Field::new("hydrated/total", Unit::None),
    Field::new("hydrating", Unit::None),
    Field::new("features", Unit::None),
    Field::new("core_args", Unit::None),
    Field::new("mode", Unit::None),
];

/// Sectors of a metadata block.
pub(super) const METADATA_BLOCK_SECTORS: u64 = 8;

/// The first words of its messages.
pub(super) const MESSAGES: &[&str] =
    &["enable_hydration", "disable_hydration", "hydration_threshold", "hydration_batch_size"];

impl Clone {
    /// Both groups as they are now, as the kernel prints them: a count of words, then the words.
    fn groups(&self) -> [Vec<String>; 2] {
        let passes_down = self.passes_down();
        let state = self.state.lock();
        let settings = &state.settings;
        let features = [(!settings.hydrates, NO_HYDRATION), (!passes_down, NO_PASSDOWN)];
        let features = features.into_iter().filter(|(is_on, _)| *is_on);
        let core = [(THRESHOLD, settings.threshold), (BATCH, settings.batch)];
        let core = core.into_iter().flat_map(|(word, value)| [word.to_owned(), value.to_string()]);
        let counted = |words: Vec<String>| -> Vec<String> {
            std::iter::once(words.len().to_string()).chain(words).collect()
        };
        [counted(features.map(|(_, word)| word.to_owned()).collect()), counted(core.collect())]
    }

    pub(super) fn make_report(&self) -> Report {
        let [features, core] = self.groups();
        let state = self.state.lock();
        let mode = match self.read_only || state.is_failing {
            true => "ro",
            false => "rw",
        };
        let values = [
            Value::Gauge(METADATA_BLOCK_SECTORS),
            Value::Share(state.blocks.0, state.blocks.1),
            Value::Gauge(self.config.region_size.sectors()),
            Value::Share(state.hydrated, self.bits.regions()),
            Value::Gauge(state.copying()),
            Value::Names(features),
            Value::Names(core),
            Value::State(mode),
        ];
        Report::new(STATUS_FIELDS, values)
    }

    pub(super) fn act_on_message(&self, words: &[&str]) -> Result<String, MessageError> {
        let (word, values) = words.split_first().unwrap_or((&"", &[]));
        let known = MESSAGES.iter().find(|known| known.eq_ignore_ascii_case(word));
        let number = || match values {
            [value] => value.parse::<u32>().ok().map(u64::from),
            _ => None,
        };
        let mut state = self.state.lock();
        let settings = &mut state.settings;
        match known.copied() {
            Some(word @ ("enable_hydration" | "disable_hydration")) if values.is_empty() => {
                settings.hydrates = word == "enable_hydration";
                settings.args.set_flag(NO_HYDRATION, !settings.hydrates);
            }
            Some(word @ (THRESHOLD | BATCH)) => {
                let Some(regions) = number() else {
                    let found = values.join(" ");
                    return Err(MessageError::Invalid(format!(
                        "{word}: found '{found}', expected a number from 0 to {}",
                        u32::MAX
                    )));
                };
                match word {
                    THRESHOLD => settings.threshold = regions,
                    _ => settings.batch = regions,
                }
                settings.args.set_number(word, regions);
            }
            _ => {
                let (found, expected) = (words.join(" "), MESSAGES.join(", "));
                return Err(MessageError::Invalid(format!(
                    "message: found '{found}', expected one of {expected}"
                )));
            }
        }
        drop(state);
        self.changed.notify(usize::MAX);
        Ok(String::new())
    }
}

//! [`Args`]: the words of a table line, parsed by the declaration of the target and printed by it.
//!
//! Every target parses with this and nothing else, so that all follow one syntax: numbers are
//! decimal, keywords are compared without regard to case (as the kernel compares them), left-over
//! words are refused, and an error names the target, the argument, what was found and what was
//! expected. A target takes its typed configuration out of what was parsed.
//!
//! Must never do I/O beyond opening a device, nor write a byte.

use std::fmt;
use std::sync::Arc;

use cairn_block::{
    Attribute, ConfigError, Ctor, Disk, Sector, SectorCount, SectorRange, Value as Told,
    read_only_parts,
};
use cairn_format::bcache::Uuid;

use crate::area::Area;
use crate::kind::opens_read_only;
use crate::spec::{Arg, Kind, NO_DEVICE, Opt, Spec, Words};

/// The largest position or length that has a byte offset.
pub(crate) const MAX_SECTORS: u64 = u64::MAX >> 9;

/// A device argument, opened.
#[derive(Clone)]
pub struct Device {
    /// The user's name for it; printed in the table line.
    pub argument: String,
    /// The disk.
    pub disk: Arc<dyn Disk>,
}

impl Device {
    /// Refuses a device that the line writes to, as `field`, if a part of this range refuses
    /// writes.
    ///
    /// # Errors
    /// One does.
    pub fn refuse_read_only(&self, field: &str, range: SectorRange) -> Result<(), ConfigError> {
        let parts = read_only_parts(self.disk.as_ref(), range);
        let found = match parts.first() {
            None => return Ok(()),
            Some(part) if *part == range => "it read-only".to_owned(),
            Some(part) => format!("sectors {part} read-only"),
        };
        Err(ConfigError::argument(&self.argument, field, found, "a writable device"))
    }

    /// The same of all of it.
    ///
    /// # Errors
    /// A part of it refuses writes.
    pub fn refuse_if_read_only(&self, field: &str) -> Result<(), ConfigError> {
        self.refuse_read_only(field, SectorRange::new(Sector(0), self.disk.sectors()))
    }
}

/// A parsed word.
#[derive(Clone)]
enum Value {
    Device(Device),
    Number(u64),
    Word(&'static str),
    Uuid(Uuid),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Device(device) => f.write_str(&device.argument),
            Value::Number(number) => write!(f, "{number}"),
            Value::Word(word) => f.write_str(word),
            Value::Uuid(uuid) => write!(f, "{uuid}"),
        }
    }
}

/// The arguments of a table line.
#[derive(Clone)]
pub struct Args {
    spec: &'static Spec,
    len: SectorCount,
    fixed: Vec<(&'static Arg, Value)>,
    /// Of each option of the group, its values if it was given.
    options: Vec<Option<Vec<Value>>>,
}

/// An error about an argument of a target.
pub(crate) fn refuse(
    target: &str,
    field: &str,
    found: impl fmt::Display,
    expected: &str,
) -> ConfigError {
    ConfigError::argument(target, field, found, expected)
}

impl Args {
    /// Parses the words after the target's name and opens the devices; their sizes are read again.
    ///
    /// # Errors
    /// A word is missing, wrong or superfluous, or a device can't be opened.
    pub fn parse(spec: &'static Spec, ctor: &Ctor<'_>) -> Result<Args, ConfigError> {
        let (Words { fixed, options }, split) = spec.split(ctor.args.iter().copied());
        split?;
        let parsed =
            fixed.into_iter().map(|(arg, word)| Ok((arg, value(spec, arg, arg.name, word, ctor)?)));
        let fixed = parsed.collect::<Result<_, ConfigError>>()?;
        let options = spec.options().zip(options).map(|(option, words)| {
            let Some(words) = words else { return Ok(None) };
            let parsed = option.values.iter().zip(words).map(|(arg, word)| {
                let field = match option.values.len() {
                    1 => option.word.to_owned(),
                    _ => format!("{} {}", option.word, arg.name),
                };
                value(spec, arg, &field, word, ctor)
            });
            parsed.collect::<Result<_, _>>().map(Some)
        });
        let options = options.collect::<Result<_, ConfigError>>()?;
        Ok(Args { spec, len: ctor.len, fixed, options })
    }

    /// An error about `field`.
    pub fn refuse(&self, field: &str, found: impl fmt::Display, expected: &str) -> ConfigError {
        refuse(self.spec.name, field, found, expected)
    }

    fn value(&self, name: &str) -> Option<&Value> {
        let fixed = self.fixed.iter().find(|(arg, _)| arg.name == name).map(|(_, value)| value);
        fixed.or_else(|| self.values(name)?.first())
    }

    fn values(&self, option: &str) -> Option<&[Value]> {
        let (at, _) = self.spec.option(option)?;
        self.options[at].as_deref()
    }

    /// A device that must stand.
    pub fn device(&self, name: &str) -> Device {
        self.optional_device(name).expect("a device that is declared and must stand")
    }

    /// A device that may stand, or that [`NO_DEVICE`] may stand for.
    pub fn optional_device(&self, name: &str) -> Option<Device> {
        match self.value(name)? {
            Value::Device(device) => Some(device.clone()),
            _ => None,
        }
    }

    /// A number that was given: an argument, or the only value of an option.
    pub fn given(&self, name: &str) -> Option<u64> {
        match self.value(name)? {
            Value::Number(number) => Some(*number),
            _ => None,
        }
    }

    /// A number that was given, or the default of its option.
    pub fn number(&self, name: &str) -> u64 {
        let default = || self.spec.option(name)?.1.default;
        self.given(name).or_else(default).expect("a number that must stand, or has a default")
    }

    /// A keyword that was given: an argument, or the only value of an option.
    pub fn word(&self, name: &str) -> Option<&'static str> {
        match self.value(name)? {
            Value::Word(word) => Some(word),
            _ => None,
        }
    }

    /// An identifier that was given: the only value of an option.
    pub fn uuid(&self, name: &str) -> Option<Uuid> {
        match self.value(name)? {
            Value::Uuid(uuid) => Some(*uuid),
            _ => None,
        }
    }

    /// True if the option was given.
    pub fn has(&self, option: &str) -> bool {
        self.values(option).is_some()
    }

    /// The values of an option with several, as numbers; a keyword is its place among those that
    /// are known.
    pub fn numbers<const N: usize>(&self, option: &str) -> Option<[u64; N]> {
        let (at, declared) = self.spec.option(option)?;
        let values = declared.values.iter().zip(self.options[at].as_ref()?);
        let number = |(arg, value): (&Arg, &Value)| match (arg.kind, value) {
            (Kind::Word(known), Value::Word(word)) => {
                known.iter().position(|known| known == word).unwrap_or_default() as u64
            }
            (_, Value::Number(number)) => *number,
            _ => 0,
        };
        values.map(number).collect::<Vec<_>>().try_into().ok()
    }

    /// The options, given or not, as attributes. A message of an option's name changes it.
    pub fn attributes(&self) -> Vec<Attribute> {
        let spec = self.spec;
        let attribute = |(option, given): (&'static Opt, &Option<Vec<Value>>)| Attribute {
            name: option.word,
            value: match given.as_deref() {
                Some([Value::Number(number)]) => Told::Gauge(*number),
                Some([Value::Word(word)]) => Told::State(word),
                None if option.values.is_empty() => Told::State("off"),
                Some([]) => Told::State("on"),
                Some(values) => Told::Names(values.iter().map(Value::to_string).collect()),
                None => option.default.map_or(Told::Absent, Told::Gauge),
            },
        };
        spec.options().zip(&self.options).map(attribute).collect()
    }

    /// The areas that the line names, in order: `len` sectors from each offset of the device before
    /// it.
    ///
    /// # Errors
    /// A device does not hold that range.
    pub fn areas(&self, len: SectorCount) -> Result<Vec<Area>, ConfigError> {
        let pairs = self.fixed.windows(2).filter_map(|pair| match pair {
            [(_, Value::Device(device)), (offset, Value::Number(start))]
                if matches!(offset.kind, Kind::Offset) =>
            {
                Some((device.clone(), offset.name, Sector(*start)))
            }
            _ => None,
        });
        let area = |(device, field, start)| Area::new(self.spec.name, device, field, start, len);
        pairs.map(area).collect()
    }

    /// The area of a line that names one.
    ///
    /// # Errors
    /// The device does not hold the line's range.
    pub fn area(&self) -> Result<Area, ConfigError> {
        let mut areas = self.areas(self.len)?;
        Ok(areas.pop().expect("an area that is declared and must stand"))
    }

    /// Changes the number of an argument or option that is declared; one that was not given is
    /// given from now on.
    pub fn set_number(&mut self, name: &str, number: u64) {
        self.set(name, Some(vec![Value::Number(number)]));
    }

    /// Gives an option without values, or takes it out.
    pub fn set_flag(&mut self, option: &str, given: bool) {
        self.set(option, given.then(Vec::new));
    }

    /// Changes the keyword that is the value of an option.
    pub fn set_word(&mut self, option: &str, word: &'static str) {
        self.set(option, Some(vec![Value::Word(word)]));
    }

    /// Takes a device out that may be absent.
    pub fn set_no_device(&mut self, name: &str) {
        self.set(name, Some(vec![Value::Word(NO_DEVICE)]));
    }

    fn set(&mut self, name: &str, values: Option<Vec<Value>>) {
        if let Some((at, _)) = self.spec.option(name) {
            self.options[at] = values;
            return;
        }
        let value = values.and_then(|values| values.into_iter().next());
        let Some((arg, value)) = self.spec.arguments.iter().find(|arg| arg.name == name).zip(value)
        else {
            return;
        };
        match self.fixed.iter_mut().find(|(arg, _)| arg.name == name) {
            Some((_, known)) => *known = value,
            None => self.fixed.push((arg, value)),
        }
    }
}

/// As the kernel prints them: options that were given, in the declared order.
impl fmt::Display for Args {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = |values: &Vec<Value>| values.iter().map(Value::to_string).collect();
        let options = self.options.iter().map(|values| values.as_ref().map(words));
        f.write_str(&self.spec.join(self.fixed.iter().map(|(_, value)| value), options, false))
    }
}

fn value(
    spec: &Spec,
    arg: &Arg,
    field: &str,
    word: &str,
    ctor: &Ctor<'_>,
) -> Result<Value, ConfigError> {
    let known = match arg.kind {
        Kind::Device if !arg.names_device(word) => Some(Value::Word(NO_DEVICE)),
        Kind::Device => {
            return open(word, opens_read_only(arg, word, ctor), ctor).map(Value::Device);
        }
        Kind::Offset | Kind::Number(..) => arg.kind.number(word).map(Value::Number),
        Kind::Word(_) | Kind::Spelled(..) => arg.kind.word(word).map(Value::Word),
        Kind::Uuid => word.parse().ok().map(Value::Uuid),
    };
    known.ok_or_else(|| refuse(spec.name, field, format!("'{word}'"), &arg.kind.expected()))
}

fn open(argument: &str, read_only: bool, ctor: &Ctor<'_>) -> Result<Device, ConfigError> {
    let disk = ctor.registry.open(argument, read_only)?;
    disk.refresh()?;
    Ok(Device { argument: argument.to_owned(), disk })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{Fixture, OneVolume, drive_options, with_ctor};
    use crate::spec::{Group, Use};
    use cairn_sim::{DriveOptions, Image};

    #[test]
    fn devices_that_a_line_writes_to_are_refused_if_they_are_read_only_there() {
        let read_only = DriveOptions { read_only: true, ..drive_options("r") };
        let drives = [drive_options("a"), drive_options("b"), drive_options("c"), read_only];
        let blank = drives.map(|options| (options, Image::new(SectorCount(8192))));
        let test = OneVolume::of(Fixture::with_options(1, blank));
        // Sectors from 128 on refuse writes.
        test.fixture.load("m", "0 128 linear a 0\n128 7936 linear r 0");
        for (table, expected) in [
            ("0 64 writecache s r b 4096 0", "r: origin: found it read-only"),
            ("0 136 writecache s @m b 4096 0", "@m: origin: found sectors 128+8 read-only"),
            ("0 64 writecache s b @m 4096 0", "@m: cache: found sectors 128+7936 read-only"),
            ("0 64 writecache s b @m 4096 2 start_sector 256", "@m: cache: found it read-only"),
            ("0 4096 thin-pool r b 128 0", "r: metadata: found it read-only"),
            ("0 4096 thin-pool b @m 128 0", "@m: data: found sectors 128+3968 read-only"),
            ("0 64 snapshot b @m P 8", "@m: cow: found sectors 128+7936 read-only"),
            ("0 136 snapshot-merge @m b P 8", "@m: origin: found sectors 128+8 read-only"),
            ("0 136 clone b @m r 8", "@m: destination: found sectors 128+8 read-only"),
            ("0 128 clone @m b r 8", "@m: metadata: found sectors 128+7936 read-only"),
        ] {
            let refused = test.refusal(table);
            let expected = format!("{expected}, expected a writable device");
            assert_eq!(refused, expected, "{table}");
        }
        // They are not where the line does not write.
        test.load("0 128 writecache s @m b 4096 0");
        test.load("0 8064 snapshot @m c P 8");
        test.write(4096, 8, 7).unwrap();
        assert!(test.bytes(4096, 8).iter().all(|byte| *byte == 7));
    }

    const ANY: Arg = Arg::number("left", 0, u64::MAX, "");
    const SPEC: Spec = Spec {
        group: Group::features(
            4,
            false,
            &[
                Opt::new("plain", &[], "").own().once(),
                Opt::new("Pair", &[ANY, Arg::number("right", 0, 9, "")], ""),
                Opt::new("single", &[Arg::number("percent", 1, 100, "")], "").default(7),
            ],
        ),
        ..Spec::plain(
            "probe",
            [1, 0, 0],
            &[
                Arg::number("n", 0, 255, ""),
                Arg::word("direction", Kind::Word(&["r", "w"]), ""),
                Arg::offset("place").optional(),
            ],
        )
    };
    const ROWS: Spec = Spec::plain(
        "rows",
        [1, 0, 0],
        &[
            Arg::number("#rows", 1, 9, ""),
            Arg::device("device", Use::Maps, "").repeated(),
            Arg::offset("offset"),
        ],
    );

    fn parse(line: &str) -> Result<Args, String> {
        with_ctor(line, |ctor| Args::parse(&SPEC, ctor).map_err(|error| error.to_string()))
    }

    fn refusal(line: &str) -> String {
        parse(line).err().expect("refused")
    }

    #[test]
    fn numbers_are_decimal_and_bounded() {
        assert_eq!(parse("7 r").unwrap().number("n"), 7);
        for word in ["300", "x", "-1", "0x10", "18446744073709551616"] {
            let wrong = format!("probe: n: found '{word}', expected a number from 0 to 255");
            assert_eq!(refusal(&format!("{word} r")), wrong);
        }
        let wrong = "probe: Pair left: found 'x', expected a number of at least 0";
        assert_eq!(refusal("7 r 0 3 pair x 1"), wrong);
        assert!(refusal("7 r 36028797018963968").contains("from 0 to 36028797018963967"));
        let missing = "probe: direction: found nothing, expected one of r, w";
        assert_eq!(refusal("7"), missing);
    }

    #[test]
    fn a_group_ends_where_its_count_says() {
        let args = parse("7 r 0 4 PAIR 1 2 plain").unwrap();
        assert_eq!((args.numbers("Pair"), args.has("plain")), (Some([1, 2]), true));
        assert_eq!(args.to_string(), "7 r 0 4 plain Pair 1 2");
        assert_eq!(
            refusal("7 r 0 3 pair 1 2 plain"),
            "probe: trailing words: found 'plain', \
             expected the end of the line"
        );
    }

    #[test]
    fn without_words_a_group_is_empty() {
        for line in ["7 r 0", "7 r 0 0"] {
            let args = parse(line).unwrap();
            assert_eq!(
                (args.has("plain"), args.given("single"), args.number("single")),
                (false, None, 7)
            );
            assert_eq!(args.to_string(), "7 r 0");
        }
        assert_eq!(parse("7 r").unwrap().to_string(), "7 r");
    }

    #[test]
    fn wrong_groups_are_refused() {
        for (line, wrong) in [
            (
                "2 plain",
                "#features: found 2 with 1 words after it, expected a count of the words after it",
            ),
            ("5", "#features: found '5', expected a number from 0 to 4"),
            ("1 other", "option: found 'other', expected one of plain, Pair, single"),
            ("2 pair 1", "Pair: found 1 words counted after it, expected 2 (left, right)"),
            ("2 single 0", "single: found '0', expected a number from 1 to 100"),
            ("2 plain plain", "features: found 'plain', expected it once"),
        ] {
            assert_eq!(refusal(&format!("7 r 0 {line}")), format!("probe: {wrong}"));
        }
    }

    #[test]
    fn choices_ignore_case_and_trailing_words_are_refused() {
        assert_eq!(parse("7 W").unwrap().word("direction"), Some("w"));
        assert_eq!(refusal("7 x"), "probe: direction: found 'x', expected one of r, w");
        let left = "probe: trailing words: found 'more', expected the end of the line";
        assert_eq!(refusal("7 r 0 0 more"), left);
    }

    #[test]
    fn arguments_repeat_as_often_as_the_first_one_says() {
        let rows = |line| {
            with_ctor(line, |ctor| {
                let args = Args::parse(&ROWS, ctor).map_err(|error| error.to_string())?;
                let areas = args.areas(SectorCount(8)).map_err(|error| error.to_string())?;
                Ok::<_, String>((
                    args.to_string(),
                    areas.iter().map(Area::to_string).collect::<Vec<_>>(),
                ))
            })
        };
        let (printed, areas) = rows("2 /o 0 /c 8").unwrap();
        assert_eq!((printed.as_str(), areas), ("2 /o 0 /c 8", vec!["/o 0".into(), "/c 8".into()]));
        assert_eq!(rows("2 /o 0").unwrap_err(), "rows: device: found nothing, expected a device");
        assert_eq!(rows("0").unwrap_err(), "rows: #rows: found '0', expected a number from 1 to 9");
        let outside = "/c: rows offset: found 4096 for 8 sectors, expected a range inside the \
                       device, which has 4096 sectors";
        assert_eq!(rows("1 /c 4096").unwrap_err(), outside);
    }

    #[test]
    fn what_was_changed_is_printed() {
        let mut args = parse("7 r 0 1 plain").unwrap();
        args.set_number("single", 9);
        args.set_flag("plain", false);
        args.set_number("n", 8);
        assert_eq!(args.to_string(), "8 r 0 2 single 9");
    }

    #[test]
    fn attributes_are_what_was_given_or_the_defaults() {
        let shown = |line| {
            let attributes = parse(line).unwrap().attributes();
            attributes.iter().map(|it| format!("{} {}", it.name, it.value)).collect::<Vec<_>>()
        };
        assert_eq!(shown("7 r"), ["plain off", "Pair -", "single 7"]);
        assert_eq!(shown("7 r 0 4 pair 1 2 plain"), ["plain on", "Pair 1 2", "single 7"]);
        assert_eq!(shown("7 r 0 2 single 9"), ["plain off", "Pair -", "single 9"]);
    }

    #[test]
    fn the_kernel_gets_no_options_of_our_own() {
        assert_eq!(SPEC.kernel_words("7 r 0 3 plain single 9"), "7 r 0 2 single 9");
        assert_eq!(SPEC.kernel_words("7 r 0 1 plain"), "7 r 0");
    }

    #[test]
    fn a_line_of_length_n_is_as_long_as_its_devices_allow() {
        let length = |target: &str, words: &str| {
            let size_of = |device: &str| match device {
                "/big" => Ok(SectorCount(1000)),
                "/small" => Ok(SectorCount(100)),
                _ => Err(refuse(device, "size", "nothing", "a device")),
            };
            let spec = crate::spec(target).unwrap();
            let length = spec.length(words.split_whitespace(), size_of);
            length.map(|length| length.0).map_err(|error| error.to_string())
        };
        for (target, words, sectors) in [
            ("linear", "/big 8", 992),
            ("passthrough", "/big", 1000),
            ("flakey", "/big 8 1 1", 992),
            ("delay", "/big 0 1 /small 4 1", 96),
            ("striped", "2 8 /big 0 /small 3", 192),
            ("striped", "3 7 /big 0 /big 0 /big 0", 2982),
            ("writecache", "s /big /small 4096 0", 1000),
            ("snapshot", "/small /big P 8", 100),
            ("snapshot-origin", "/big", 1000),
            ("snapshot-merge", "/small /big P 8", 100),
            ("thin-pool", "/small /big 128 0", 1000),
            ("thin", "@pool 0 /small", 100),
        ] {
            assert_eq!(length(target, words), Ok(sectors), "{target} {words}");
        }
        for (target, words, wrong) in [
            (
                "zero",
                "",
                "zero: length: found no number, expected a number of sectors, as the line",
            ),
            ("error", "", "error: length: found no number"),
            ("thin", "@pool 0", "thin: length: found no number, expected a number of sectors, as"),
            (
                "linear",
                "/small 100",
                "/small: length: found 0 sectors for linear, expected one sector at least",
            ),
            (
                "striped",
                "2 99 /big 0 /small 2",
                "/small: length: found 98 sectors for striped, expected one row at least",
            ),
            ("linear", "/none 0", "/none: size: found nothing"),
            ("linear", "/big x", "linear: offset: found 'x'"),
            ("linear", "/big", "linear: offset: found nothing"),
        ] {
            let refused = length(target, words).unwrap_err();
            assert!(refused.starts_with(wrong), "{target} {words}: {refused}");
        }
    }

    #[test]
    fn a_synopsis_has_brackets_around_what_may_be_left_out() {
        let text = "START LENGTH probe <n> <direction> [<place>] [<#features> [<feature>]...]";
        assert_eq!(SPEC.synopsis(), text);
        assert_eq!(ROWS.synopsis(), "START LENGTH rows <#rows> [<device> <offset>]...");
    }
}

//! [`Spec`]: what a kind of target says about itself, as data: its table line, its status fields
//! and its messages.
//!
//! A target declares its line once. From the declaration come the parser and the printer
//! ([`crate::args`]), the text of `cairn targets NAME`, and the check of the manuals. This file
//! also splits a line into its words by the declaration, which opens no device: for readers of
//! tables whose devices may be missing.

use std::fmt::{self, Write};

use cairn_block::{ConfigError, Env, Field, LocalFuture, Registry, SectorCount, TableLine};

use crate::args::{MAX_SECTORS, refuse};

/// What a word of a line is.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A device.
    Device,
    /// The sector of the device before it where the target's range begins.
    Offset,
    /// A decimal number from the first to the second.
    Number(u64, u64),
    /// One of these, without regard to case.
    Word(&'static [&'static str]),
    /// A word that has several spellings: what is expected, and the spelling that is printed.
    Spelled(&'static str, fn(&str) -> Option<&'static str>),
    /// An identifier, with or without hyphens.
    Uuid,
}

impl Kind {
    /// What an error says was expected.
    pub fn expected(self) -> String {
        match self {
            Kind::Device => "a device".to_owned(),
            Kind::Offset => Kind::Number(0, MAX_SECTORS).expected(),
            Kind::Number(least, u64::MAX) => format!("a number of at least {least}"),
            Kind::Number(least, most) => format!("a number from {least} to {most}"),
            Kind::Word([only]) => format!("'{only}'"),
            Kind::Word(words) => format!("one of {}", words.join(", ")),
            Kind::Spelled(expected, _) => expected.to_owned(),
            Kind::Uuid => "a UUID of 32 hexadecimal digits".to_owned(),
        }
    }

    /// The number that a word says, if it is within the range.
    pub fn number(self, word: &str) -> Option<u64> {
        let (least, most) = match self {
            Kind::Offset => (0, MAX_SECTORS),
            Kind::Number(least, most) => (least, most),
            _ => return None,
        };
        word.parse().ok().filter(|number| (least..=most).contains(number))
    }

    /// The keyword that a word spells.
    pub fn word(self, word: &str) -> Option<&'static str> {
        match self {
            Kind::Word(words) => words.iter().find(|w| w.eq_ignore_ascii_case(word)).copied(),
            Kind::Spelled(_, canonical) => canonical(word),
            _ => None,
        }
    }
}

/// What a line does with one of its devices while it is live. By this the control crate keeps the
/// devices of volumes that are not served, and tells which verbs meet on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// It is no device.
    Nothing,
    /// It is a pool, which all its volumes share.
    Pool,
    /// It maps its own range to a range of the device, which belongs to nobody.
    Maps,
    /// It reads the device, which must not change.
    Reads,
    /// It reads the device, which other lines write in its knowledge.
    Follows,
    /// It writes the device, together with other lines over the same one.
    Shares,
    /// It has the device for itself.
    Owns(Span),
}

/// A part of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// All of it.
    Whole,
    /// As much as the line is long.
    Line,
    /// From the sector on that this option says; without the option all of it.
    From(&'static str),
}

/// An argument of a line, or a value of an option.
#[derive(Clone, Copy, Debug)]
pub struct Arg {
    /// Its name; for the value of an option, its unit.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// What it is for, in a few words. Empty for the value of an option.
    pub doc: &'static str,
    /// The line may end before it.
    pub optional: bool,
    /// It and all after it stand as often as the first argument says.
    pub repeated: bool,
    /// The length of a line may be taken from this device.
    pub gives_length: bool,
    /// What the line does with this device.
    pub used: Use,
    /// The word [`NO_DEVICE`] may stand where the device would.
    pub or_none: bool,
    /// If the superblock of this device names a bcache set, the line serves the device with the
    /// cache of that set, or as that superblock allows it. Other lines must not write such a
    /// device.
    pub with_set: bool,
}

/// What stands for no device.
pub const NO_DEVICE: &str = "-";

impl Arg {
    const fn new(name: &'static str, kind: Kind, doc: &'static str) -> Arg {
        let (optional, repeated, gives_length) = (false, false, false);
        let (used, or_none, with_set) = (Use::Nothing, false, false);
        Arg { name, kind, doc, optional, repeated, gives_length, used, or_none, with_set }
    }

    /// A device, and what the line does with it.
    pub const fn device(name: &'static str, used: Use, doc: &'static str) -> Arg {
        Arg { used, ..Arg::new(name, Kind::Device, doc) }
    }

    /// Where the range begins on the device before it.
    pub const fn offset(name: &'static str) -> Arg {
        Arg::new(name, Kind::Offset, "the sector of that device where the range begins")
    }

    /// A number.
    pub const fn number(name: &'static str, least: u64, most: u64, doc: &'static str) -> Arg {
        Arg::new(name, Kind::Number(least, most), doc)
    }

    /// A keyword.
    pub const fn word(name: &'static str, kind: Kind, doc: &'static str) -> Arg {
        Arg::new(name, kind, doc)
    }

    /// The same, and the line may end before it.
    pub const fn optional(self) -> Arg {
        Arg { optional: true, ..self }
    }

    /// The same; it and all after it stand as often as the first argument says.
    pub const fn repeated(self) -> Arg {
        Arg { repeated: true, ..self }
    }

    /// The same; the length of a line may be taken from it.
    pub const fn gives_length(self) -> Arg {
        Arg { gives_length: true, ..self }
    }

    /// The same device, or none.
    pub const fn or_none(self) -> Arg {
        Arg { or_none: true, ..self }
    }

    /// The same device, which is served as the set in its superblock says.
    pub const fn with_set(self) -> Arg {
        Arg { with_set: true, ..self }
    }

    /// True if a line writes to this device.
    pub fn is_written(&self) -> bool {
        matches!(self.used, Use::Maps | Use::Shares | Use::Owns(_))
    }

    /// True if this word names a device.
    pub fn names_device(&self, word: &str) -> bool {
        matches!(self.kind, Kind::Device) && !(self.or_none && word == NO_DEVICE)
    }
}

/// An optional argument: a keyword and the values that follow it.
#[derive(Clone, Copy, Debug)]
pub struct Opt {
    /// The keyword.
    pub word: &'static str,
    /// What follows it. The name of each is its unit.
    pub values: &'static [Arg],
    /// What it is for, in a few words.
    pub doc: &'static str,
    /// The number that its only value has if the option is not given.
    pub default: Option<u64>,
    /// Only cairn knows it.
    pub own: bool,
    /// It may not stand twice.
    pub once: bool,
    /// The option that this one takes the place of.
    pub instead_of: Option<&'static str>,
}

impl Opt {
    /// A keyword with values.
    pub const fn new(word: &'static str, values: &'static [Arg], doc: &'static str) -> Opt {
        Opt { word, values, doc, default: None, own: false, once: false, instead_of: None }
    }

    /// The same, with the number that its only value has if the option is not given.
    pub const fn default(self, number: u64) -> Opt {
        Opt { default: Some(number), ..self }
    }

    /// The same; only cairn knows it.
    pub const fn own(self) -> Opt {
        Opt { own: true, ..self }
    }

    /// The same; it may not stand twice.
    pub const fn once(self) -> Opt {
        Opt { once: true, ..self }
    }

    /// The same; it takes the place of another one that was given before.
    pub const fn instead_of(self, other: &'static str) -> Opt {
        Opt { instead_of: Some(other), ..self }
    }
}

/// As in a manual: the keyword and the units of its values.
impl fmt::Display for Opt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word)?;
        self.values.iter().try_for_each(|value| write!(f, " <{}>", value.name))
    }
}

/// The optional arguments at the end of a line, with a count of words before them.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// The name of the count.
    pub count: &'static str,
    /// The name of what is counted.
    pub item: &'static str,
    /// Most words that the count may say.
    pub most: usize,
    /// The count must stand, even if it is 0.
    pub needed: bool,
    /// The count is printed, even if it is 0.
    pub prints_zero: bool,
    /// The options, in the order in which they are printed.
    pub options: &'static [Opt],
}

impl Group {
    /// No optional arguments, and no count of them.
    const NONE: Group =
        Group { count: "", item: "", most: 0, needed: false, prints_zero: false, options: &[] };

    /// `[<#features> [<feature>]...]`
    pub const fn features(most: usize, prints_zero: bool, options: &'static [Opt]) -> Group {
        let (count, item) = ("#features", "feature");
        Group { count, item, most, needed: false, prints_zero, options }
    }
}

/// Reads from the devices of a line how long it may be at most. It is given the words after the
/// target's name, and whether devices are opened read-only.
pub type Measure = for<'a> fn(
    &'a Env,
    &'a Registry,
    &'a [String],
    bool,
) -> LocalFuture<'a, Result<SectorCount, ConfigError>>;

/// A kind of target. Its manual lists exactly what this declares.
#[derive(Clone, Copy, Debug)]
pub struct Spec {
    /// The word in the table line.
    pub name: &'static str,
    /// The kernel's version of the same target.
    pub version: [u32; 3],
    /// Only cairn knows it.
    pub own: bool,
    /// The arguments after the target's name.
    pub arguments: &'static [Arg],
    /// The optional arguments after those.
    pub group: Group,
    /// A second group of them, with a count of its own. It stands only after the first one's count.
    pub second: Group,
    /// The fields of the status line after the target's name, in order.
    pub status_fields: &'static [Field],
    /// The first words of its messages.
    pub messages: &'static [&'static str],
    /// How long a line may be, where it is not the sizes of devices that say so.
    pub measure: Option<Measure>,
}

/// The words of a line, each with its declaration.
pub struct Words<'a> {
    /// The arguments.
    pub fixed: Vec<(&'static Arg, &'a str)>,
    /// Of each option of the group, its values if it stands.
    pub options: Vec<Option<Vec<&'a str>>>,
}

impl<'a> Words<'a> {
    /// The values of an option, if it stands.
    pub fn option(&self, spec: &Spec, word: &str) -> Option<&[&'a str]> {
        self.options[spec.option(word)?.0].as_deref()
    }

    /// The word of an argument.
    pub fn argument(&self, name: &str) -> Option<&'a str> {
        self.fixed.iter().find(|(arg, _)| arg.name == name).map(|(_, word)| *word)
    }
}

/// The words of a table line, with the declaration of its target. None if there is no such target.
/// Of a line that is wrong, the words before the first wrong one.
pub fn words_of(line: &TableLine) -> Option<(&'static Spec, Words<'_>)> {
    let spec = crate::spec(&line.target)?;
    Some((spec, spec.split(line.args.iter().map(String::as_str)).0))
}

impl Spec {
    /// A target without optional arguments, status fields and messages.
    pub const fn plain(name: &'static str, version: [u32; 3], arguments: &'static [Arg]) -> Spec {
        Spec {
            name,
            version,
            own: false,
            arguments,
            group: Group::NONE,
            second: Group::NONE,
            status_fields: &[],
            messages: &[],
            measure: None,
        }
    }

    /// The options of both groups, in the order in which they are printed.
    pub fn options(&self) -> impl Iterator<Item = &'static Opt> + use<> {
        self.group.options.iter().chain(self.second.options)
    }

    /// The option of this keyword: its number and its declaration.
    pub fn option(&self, word: &str) -> Option<(usize, &'static Opt)> {
        self.options().enumerate().find(|(_, known)| known.word.eq_ignore_ascii_case(word))
    }

    /// Splits the words after the target's name. If one is missing or superfluous, the first answer
    /// has the words before it.
    pub fn split<'a>(
        &self,
        words: impl IntoIterator<Item = &'a str>,
    ) -> (Words<'a>, Result<(), ConfigError>) {
        let words: Vec<&str> = words.into_iter().collect();
        let options = vec![None; self.options().count()];
        let mut split = Words { fixed: Vec::new(), options };
        let done = self.split_into(&mut split, &words);
        (split, done)
    }

    fn split_into<'a>(&self, split: &mut Words<'a>, words: &[&'a str]) -> Result<(), ConfigError> {
        let (arguments, mut left): (&'static [Arg], _) = (self.arguments, words);
        let repeated = arguments.iter().position(|arg| arg.repeated).unwrap_or(arguments.len());
        let (once, often) = arguments.split_at(repeated);
        self.take(split, once, &mut left)?;
        let times = match (often, once.first()) {
            ([_, ..], Some(first)) => self.count(first.name, first.kind, words)?,
            _ => 0,
        };
        for _ in 0..times {
            self.take(split, often, &mut left)?;
        }
        for group in [&self.group, &self.second] {
            left = self.take_group(group, split, left)?;
        }
        match left.first() {
            None => Ok(()),
            Some(word) => {
                let found = format!("'{word}'");
                Err(refuse(self.name, "trailing words", found, "the end of the line"))
            }
        }
    }

    fn take<'a>(
        &self,
        split: &mut Words<'a>,
        arguments: &'static [Arg],
        left: &mut &[&'a str],
    ) -> Result<(), ConfigError> {
        for arg in arguments {
            let Some((&word, rest)) = left.split_first() else {
                if arg.optional {
                    break;
                }
                return Err(refuse(self.name, arg.name, "nothing", &arg.kind.expected()));
            };
            split.fixed.push((arg, word));
            *left = rest;
        }
        Ok(())
    }

    /// The first word as a number that counts others.
    fn count(&self, field: &str, kind: Kind, words: &[&str]) -> Result<usize, ConfigError> {
        let word = words.first().copied().unwrap_or("nothing");
        let wrong = || refuse(self.name, field, format!("'{word}'"), &kind.expected());
        Ok(kind.number(word).ok_or_else(wrong)? as usize)
    }

    /// Takes the optional arguments; answers with what is left after them.
    fn take_group<'s, 'a>(
        &self,
        group: &Group,
        split: &mut Words<'a>,
        words: &'s [&'a str],
    ) -> Result<&'s [&'a str], ConfigError> {
        let Group { count: field, most, needed, options, .. } = *group;
        if words.is_empty() && needed {
            let expected = "the count of the option words after it (it may be 0)";
            return Err(refuse(self.name, field, "nothing", expected));
        }
        if words.is_empty() || options.is_empty() {
            return Ok(words);
        }
        let count = self.count(field, Kind::Number(0, most as u64), words)?;
        let Some((mut counted, rest)) = words[1..].split_at_checked(count) else {
            let found = format!("{count} with {} words after it", words.len() - 1);
            return Err(refuse(self.name, field, found, "a count of the words after it"));
        };
        while let Some((word, after)) = counted.split_first() {
            counted = self.take_option(group, split, word, after)?;
        }
        Ok(rest)
    }

    fn take_option<'s, 'a>(
        &self,
        group: &Group,
        split: &mut Words<'a>,
        word: &str,
        after: &'s [&'a str],
    ) -> Result<&'s [&'a str], ConfigError> {
        let is_of_group = |option: &&Opt| group.options.iter().any(|own| own.word == option.word);
        let Some((at, option)) = self.option(word).filter(|(_, option)| is_of_group(option)) else {
            let words: Vec<_> = group.options.iter().map(|option| option.word).collect();
            let expected = format!("one of {}", words.join(", "));
            return Err(refuse(self.name, "option", format!("'{word}'"), &expected));
        };
        let Some((values, rest)) = after.split_at_checked(option.values.len()) else {
            let found = format!("{} words counted after it", after.len());
            let units: Vec<_> = option.values.iter().map(|value| value.name).collect();
            let expected = format!("{} ({})", units.len(), units.join(", "));
            return Err(refuse(self.name, option.word, found, &expected));
        };
        if option.once && split.options[at].is_some() {
            let found = format!("'{}'", option.word);
            let field = group.count.trim_start_matches('#');
            return Err(refuse(self.name, field, found, "it once"));
        }
        if let Some((other, _)) = option.instead_of.and_then(|other| self.option(other)) {
            split.options[other] = None;
        }
        split.options[at] = Some(values.to_vec());
        Ok(rest)
    }

    /// The length of a line that is as long as what it stands on, which is asked for the sizes of
    /// devices. A striped line is as many whole rows as fit on each device.
    ///
    /// # Errors
    /// It stands on nothing that has a length, a word is wrong, or a device is not there.
    pub fn length<'a>(
        &self,
        words: impl IntoIterator<Item = &'a str>,
        mut size_of: impl FnMut(&'a str) -> Result<SectorCount, ConfigError>,
    ) -> Result<SectorCount, ConfigError> {
        let (Words { fixed, .. }, split) = self.split(words);
        split?;
        let number = |arg: &Arg, word: &str| {
            let wrong = || refuse(self.name, arg.name, format!("'{word}'"), &arg.kind.expected());
            arg.kind.number(word).ok_or_else(wrong)
        };
        let (mut least, mut stripes, mut chunk) = (None, 0, 1);
        for (at, (arg, word)) in fixed.iter().enumerate() {
            if arg.repeated {
                stripes += 1;
            } else if stripes == 0 && matches!(arg.kind, Kind::Number(..)) {
                chunk = number(arg, word)?;
            }
            if arg.gives_length {
                let device = *word;
                let offset = match fixed.get(at + 1) {
                    Some((next, word)) if matches!(next.kind, Kind::Offset) => number(next, word)?,
                    _ => 0,
                };
                let room = size_of(device)?.0.saturating_sub(offset);
                if least.is_none_or(|(least, _)| room < least) {
                    least = Some((room, device));
                }
            }
        }
        let Some((least, shortest)) = least else {
            let expected = "a number of sectors, as the line has no device to take its length from";
            return Err(refuse(self.name, "length", "no number", expected));
        };
        let (length, unit) = match stripes {
            0 => (least, "sector"),
            stripes => ((least / chunk).saturating_mul(chunk * stripes), "row"),
        };
        if length == 0 {
            let found = format!("{least} sectors for {}", self.name);
            return Err(refuse(shortest, "length", found, &format!("one {unit} at least")));
        }
        Ok(SectorCount(length))
    }

    /// Puts the words of a line together, the options in their order; without those that only cairn
    /// knows if it is for the kernel.
    pub fn join(
        &self,
        fixed: impl Iterator<Item = impl fmt::Display>,
        options: impl Iterator<Item = Option<Vec<String>>>,
        for_kernel: bool,
    ) -> String {
        let mut words: Vec<String> = fixed.map(|word| word.to_string()).collect();
        let given: Vec<_> = self.options().zip(options).collect();
        let (first, second) = given.split_at(self.group.options.len().min(given.len()));
        let words_of = |given: &[(&'static Opt, Option<Vec<String>>)]| -> Vec<String> {
            let given = given.iter().filter(|(option, _)| !(for_kernel && option.own));
            let given = given.filter_map(|(option, values)| Some((option.word, values.as_ref()?)));
            given
                .flat_map(|(word, values)| std::iter::once(word.to_owned()).chain(values.clone()))
                .collect()
        };
        let (first, second) = (words_of(first), words_of(second));
        if !first.is_empty() || !second.is_empty() || self.group.prints_zero {
            words.push(first.len().to_string());
        }
        words.extend(first);
        if !second.is_empty() {
            words.push(second.len().to_string());
        }
        words.extend(second);
        words.join(" ")
    }

    /// The words of a printed line as the kernel takes them: without what only cairn knows.
    pub fn kernel_words(&self, params: &str) -> String {
        let (split, Ok(())) = self.split(params.split_whitespace()) else {
            return params.to_owned();
        };
        let owned = |values: Vec<&str>| values.into_iter().map(str::to_owned).collect();
        let options = split.options.into_iter().map(|values| values.map(owned));
        self.join(split.fixed.iter().map(|(_, word)| word), options, true)
    }

    /// The line, as the manual's synopsis has it.
    pub fn synopsis(&self) -> String {
        let mut text = format!("START LENGTH {}", self.name);
        let mut closing = String::new();
        for arg in self.arguments {
            let opens = arg.optional || arg.repeated;
            write!(text, " {}<{}>", if opens { "[" } else { "" }, arg.name).expect(STRING);
            closing.push_str(if arg.repeated { "]..." } else { ["", "]"][usize::from(opens)] });
        }
        text.push_str(&closing);
        let Group { count, item, needed, options, .. } = self.group;
        let second = match self.second {
            Group { options: [], .. } => String::new(),
            Group { count, item, .. } => format!(" [<{count}> [<{item}>]...]"),
        };
        match (options, needed) {
            ([], _) => {}
            (_, true) => write!(text, " <{count}> [<{item}>]...{second}").expect(STRING),
            (_, false) => write!(text, " [<{count}> [<{item}>]...{second}]").expect(STRING),
        }
        text
    }
}

/// What `cairn targets NAME` prints: the line, what each word of it is, status and messages.
impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.synopsis())?;
        let mut rows: Vec<(String, String)> = Vec::new();
        for Arg { name, kind, doc, .. } in self.arguments {
            rows.push((format!("<{name}>"), format!("{doc} ({})", kind.expected())));
        }
        for option in self.options() {
            rows.push((option.to_string(), option.explained()));
        }
        let width = rows.iter().map(|(word, _)| word.len()).max().unwrap_or(0);
        rows.iter().try_for_each(|(word, text)| writeln!(f, "  {word:width$}  {text}"))?;
        if !self.status_fields.is_empty() {
            let names: Vec<_> = self.status_fields.iter().map(|field| field.name).collect();
            writeln!(f, "Status: {}", names.join(" "))?;
        }
        if !self.messages.is_empty() {
            writeln!(f, "Messages: {}", self.messages.join(", "))?;
        }
        Ok(())
    }
}

impl Opt {
    /// What it is for, what its values are, and what it is if it is not given.
    fn explained(&self) -> String {
        let mut notes: Vec<String> =
            self.values.iter().map(|value| value.kind.expected()).collect();
        notes.extend(self.default.map(|number| format!("default {number}")));
        notes.extend(self.own.then(|| "unknown to the kernel".to_owned()));
        match notes.as_slice() {
            [] => self.doc.to_owned(),
            notes => format!("{} ({})", self.doc, notes.join("; ")),
        }
    }
}

const STRING: &str = "writing to a string does not fail";

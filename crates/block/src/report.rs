//! [`Report`]: a target's typed report, and [`Attribute`]: an option as it is now. The kernel's
//! status line and the fields in JSON are made from them; no code parses a status line.

use std::fmt;

/// What a figure counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Nothing: a word, a number of a transaction.
    None,
    /// Sectors of 512 bytes.
    Sectors,
    /// The target's own blocks.
    Blocks,
    /// Requests.
    Requests,
}

impl Unit {
    /// Its word in JSON; none for a field that counts nothing.
    pub fn word(self) -> Option<&'static str> {
        match self {
            Unit::None => None,
            Unit::Sectors => Some("sectors"),
            Unit::Blocks => Some("blocks"),
            Unit::Requests => Some("requests"),
        }
    }
}

/// A field of a report. A kind of target has the same fields in the same order always; its manual
/// names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name in JSON.
    pub name: &'static str,
    /// What it counts.
    pub unit: Unit,
}

impl Field {
    /// A field.
    pub const fn new(name: &'static str, unit: Unit) -> Field {
        Field { name, unit }
    }
}

/// What a field says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// How often something happened since the table was loaded or the counters cleared.
    Counter(u64),
    /// How much there is now.
    Gauge(u64),
    /// How much is used, and of how much.
    Share(u64, u64),
    /// A state, by its word.
    State(&'static str),
    /// Names.
    Names(Vec<String>),
    /// There is no such thing now.
    Absent,
}

impl fmt::Display for Value {
    /// As the kernel's status line has it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Counter(number) | Value::Gauge(number) => write!(f, "{number}"),
            Value::Share(used, total) => write!(f, "{used}/{total}"),
            Value::State(word) => f.write_str(word),
            Value::Names(names) => f.write_str(&names.join(" ")),
            Value::Absent => f.write_str("-"),
        }
    }
}

/// An option of a target, as it is now. Its kind of target declares the rest: what it is for, its
/// unit, and whether a message changes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attribute {
    /// Its name.
    pub name: &'static str,
    /// What it is: given, or the default.
    pub value: Value,
}

/// What a target says about itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// Its fields and what they say, one value for each.
    Fields(&'static [Field], Vec<Value>),
    /// A state in which it has no fields to show: that it failed, mostly.
    State(&'static str),
}

impl Report {
    /// A target that has nothing to say.
    pub const NONE: Report = Report::Fields(&[], Vec::new());

    /// Of `fields`, a value for each.
    pub fn new(fields: &'static [Field], values: impl Into<Vec<Value>>) -> Report {
        let values = values.into();
        debug_assert_eq!(fields.len(), values.len(), "a value for each field");
        Report::Fields(fields, values)
    }

    /// The fields and their values.
    pub fn fields(&self) -> impl Iterator<Item = (&'static Field, &Value)> {
        let (fields, values): (&'static [Field], &[Value]) = match self {
            Report::Fields(fields, values) => (fields, values),
            Report::State(_) => (&[], &[]),
        };
        fields.iter().zip(values)
    }

    /// The value of a field.
    pub fn value(&self, name: &str) -> Option<&Value> {
        self.fields().find(|(field, _)| field.name == name).map(|(_, value)| value)
    }

    /// How much is used, and of how much, by the name of a field.
    pub fn share(&self, name: &str) -> Option<(u64, u64)> {
        match self.value(name)? {
            Value::Share(used, total) => Some((*used, *total)),
            _ => None,
        }
    }

    /// The number of a field, by its name.
    pub fn number(&self, name: &str) -> Option<u64> {
        match self.value(name)? {
            Value::Counter(number) | Value::Gauge(number) => Some(*number),
            _ => None,
        }
    }

    /// The state in place of fields.
    pub fn state(&self) -> Option<&'static str> {
        match self {
            Report::State(word) => Some(word),
            Report::Fields(..) => None,
        }
    }

    /// The kernel's status line, after the target's name.
    pub fn line(&self) -> String {
        match self {
            Report::State(word) => (*word).to_owned(),
            Report::Fields(_, values) => {
                values.iter().map(Value::to_string).collect::<Vec<_>>().join(" ")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Field, Report, Unit, Value};

    const FIELDS: &[Field] = &[
        Field::new("used/total", Unit::Blocks),
        Field::new("names", Unit::None),
        Field::new("held", Unit::None),
        Field::new("mode", Unit::None),
        Field::new("reads", Unit::Requests),
    ];

    #[test]
    fn a_report_reads_as_the_kernels_status_line() {
        let names = Value::Names(vec!["a".to_owned(), "b".to_owned()]);
        let values =
            [Value::Share(1, 9), names, Value::Absent, Value::State("rw"), Value::Counter(7)];
        let report = Report::new(FIELDS, values);
        assert_eq!(report.line(), "1/9 a b - rw 7");
        assert_eq!(report.value("reads"), Some(&Value::Counter(7)));
        assert_eq!((report.share("used/total"), report.number("reads")), (Some((1, 9)), Some(7)));
        assert_eq!((report.value("writes"), report.state()), (None, None));
        let failed = Report::State("Fail");
        assert_eq!((failed.line(), failed.fields().count()), ("Fail".to_owned(), 0));
        assert_eq!(Report::NONE.line(), "");
    }
}

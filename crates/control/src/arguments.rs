//! Values of verbs that the command line gives in another form than the control socket: sizes with
//! a suffix, and paths of the caller's folder. A wrong one is refused in one line that names the
//! option or argument.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use cairn_block::escape_word;
use cairn_outcome::failure::{Outcome, one_line, system, wrong};
use cairn_tools::args;
use clap::builder::TypedValueParser;
use clap::error::ErrorKind;
use clap::{Arg, Command};

use crate::throttles::Limits;

/// True if a device argument is the path of a file or block device.
pub fn is_path(argument: &str) -> bool {
    !argument.starts_with('@') && cairn_backends::is_path(argument)
}

/// The path in a device argument, and what stands before it: `qcow2:` or nothing.
pub fn path_in(argument: &str) -> Option<(&str, &str)> {
    if argument.starts_with('@') { None } else { cairn_backends::path_in(argument) }
}

/// Reads a value of the option or argument of this name.
type Read<T> = fn(&str, &OsStr) -> Outcome<T>;

/// A reader of values, as clap wants it.
#[derive(Clone)]
pub struct Reader<T>(Read<T>);

impl<T: Clone + Send + Sync + 'static> TypedValueParser for Reader<T> {
    type Value = T;

    fn parse_ref(&self, _: &Command, arg: Option<&Arg>, value: &OsStr) -> Result<T, clap::Error> {
        let name = arg.map(name_of).unwrap_or_default();
        let refused = |error| clap::Error::raw(ErrorKind::ValueValidation, one_line(&error));
        (self.0)(&name, value).map_err(refused)
    }
}

/// What the user calls it.
fn name_of(arg: &Arg) -> String {
    let value = arg.get_value_names().and_then(<[_]>::first).map(ToString::to_string);
    arg.get_long().map_or(value.unwrap_or_default(), |long| format!("--{long}"))
}

/// A size in bytes.
pub fn bytes() -> Reader<u64> {
    Reader(bytes_of)
}

/// A size in whole sectors.
pub fn sectors() -> Reader<u64> {
    Reader(|name, size| Ok(bytes_of(name, size)? / 512))
}

fn bytes_of(name: &str, size: &OsStr) -> Outcome<u64> {
    args::bytes(name, &size.to_string_lossy())
}

/// Limits of an export.
pub fn limits() -> Reader<Limits> {
    Reader(|name, text| Limits::parse(name, &text.to_string_lossy()))
}

/// A device as a word of a table, for the server, which may be in another folder.
pub fn device() -> Reader<String> {
    Reader(|_, device| absolute(Path::new(device)))
}

/// A path of the caller's folder as a word of a table.
///
/// # Errors
/// There is no folder, or the path is no text.
pub fn absolute(path: &Path) -> Outcome<String> {
    let shown = path.display().to_string();
    let Some((before, _)) = path_in(&shown) else { return Ok(shown) };
    let bytes = &path.as_os_str().as_bytes()[before.len()..];
    let path = Path::new(OsStr::from_bytes(bytes));
    let path = std::path::absolute(path).map_err(|error| system(&shown, "path", error))?;
    let text = path.to_str().map(|path| format!("{before}{}", escape_word(path)));
    text.ok_or_else(|| wrong(shown, "path", "bytes that are no UTF-8", "UTF-8"))
}

#[cfg(test)]
mod tests {
    use super::absolute;

    #[test]
    fn a_path_becomes_absolute_also_behind_a_scheme() {
        let here = cairn_block::escape_word(std::env::current_dir().unwrap().to_str().unwrap());
        for (given, expected) in [
            ("a b", format!("{here}/a\\040b")),
            ("qcow2:a b", format!("qcow2:{here}/a\\040b")),
            ("qcow2:/a", "qcow2:/a".to_owned()),
            ("qcow2:https://h/a", "qcow2:https://h/a".to_owned()),
            ("@a", "@a".to_owned()),
        ] {
            assert_eq!(absolute(given.as_ref()).unwrap(), expected);
        }
    }
}

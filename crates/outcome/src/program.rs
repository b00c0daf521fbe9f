//! The frame of a program's `main`, and the paths of the project's other programs.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::failure::{self, Outcome};
use crate::{exit, signals, stderr, stdout};

/// Runs a program with its parsed command line, and reports its result. Wrong usage is one line on
/// stderr and exit code 1, since 2 means damage.
pub fn run<T>(parsed: Result<T, clap::Error>, main: impl FnOnce(T) -> Outcome<u8>) -> ExitCode {
    let outcome = match parsed {
        Ok(cli) => signals::survive_size_limit().and_then(|()| main(cli)),
        Err(error) if is_answer(&error) => stdout::print(&error.render().to_string()),
        Err(error) => {
            stderr::say(usage(&error));
            return ExitCode::from(exit::FAILURE);
        }
    };
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            stderr::say(failure::one_line(&error));
            ExitCode::from(exit::of_error(&error))
        }
    }
}

/// True for `--help` and `--version`, which are no errors.
fn is_answer(error: &clap::Error) -> bool {
    matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion)
}

/// Wrong usage in one line.
#[must_use]
pub fn usage(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "found no verb, expected one (see cairn --help)".to_owned();
    }
    let text = error.render().to_string();
    let line = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<_> = line.split_whitespace().collect();
    let line = words.join(" ");
    let line = line.strip_prefix("error: ").unwrap_or(&line).to_owned();
    match error.kind() {
        ErrorKind::InvalidSubcommand => line + &way_on(error),
        _ => line,
    }
}

/// The verbs to try instead of a wrong one.
fn way_on(error: &clap::Error) -> String {
    let words = |kind| match error.get(kind) {
        Some(ContextValue::String(word)) => vec![word.clone()],
        Some(ContextValue::Strings(words)) => words.clone(),
        _ => Vec::new(),
    };
    let (meant, known) =
        (words(ContextKind::SuggestedSubcommand), words(ContextKind::ValidSubcommand));
    match (meant.as_slice(), known.as_slice()) {
        ([], []) => " (see cairn --help)".to_owned(),
        ([], known) => format!(", expected {}", known.join(", ")),
        (meant, _) => format!("; did you mean '{}'?", meant.join("' or '")),
    }
}

/// Another program of the project: the one in the folder of this executable, or else the bare name,
/// which the system looks for in `PATH`.
#[must_use]
pub fn sibling(name: &str) -> PathBuf {
    let own = std::env::current_exe().ok();
    let near = own.map(|path| path.with_file_name(name)).filter(|path| path.is_file());
    near.unwrap_or_else(|| PathBuf::from(name))
}

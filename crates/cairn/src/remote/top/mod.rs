//! `top`: what volumes do, as a screen on a terminal and as tables elsewhere.
//!
//! The client asks for the counts of the server at an interval and shows differences: the server
//! keeps nothing for it. [`mod@rows`] makes cells of two answers, [`screen`] draws them.

mod rows;
#[cfg(feature = "top")]
mod screen;

use std::io::IsTerminal;
use std::thread::sleep;

use cairn_outcome::exit;
use cairn_outcome::failure::Outcome;
use cairn_outcome::stdout::print_more;

pub(super) use self::rows::latency;
use self::rows::{HEAD, Row, Summary, rows};
use super::columns::table;
use super::follow::patiently;
use crate::cli::TopArgs;
use cairn_control::client::Client;
use cairn_control::verbs::watch::ServerFigures;
use cairn_control::watch::figures::Figures;

/// Shows what volumes do.
///
/// # Errors
/// There is no server or volume, or the terminal refuses.
pub fn run(server: &Client, args: &TopArgs) -> Outcome<u8> {
    for name in &args.names {
        // One that is not there is an error now, and no line later.
        server.ask(&super::VolumeTable { name: Some(name.clone()), ..Default::default() })?;
    }
    let is_screen = args.count.is_none() && std::io::stdout().is_terminal();
    #[cfg(feature = "top")]
    if is_screen {
        return screen::run(server, args);
    }
    let _ = is_screen;
    print_tables(server, args)
}

/// The figures of the volumes that were asked for.
fn figures(server: &Client, names: &[String]) -> Outcome<Figures> {
    let mut figures = server.ask(&ServerFigures {})?;
    if !names.is_empty() {
        figures.volumes.retain(|volume| names.contains(&volume.name));
    }
    Ok(figures)
}

/// Prints a table per interval: the first one after the first interval, as rates need two looks.
fn print_tables(server: &Client, args: &TopArgs) -> Outcome<u8> {
    let mut before = figures(server, &args.names)?;
    for tables in 1u64.. {
        sleep(args.interval);
        let now = patiently(|_| figures(server, &args.names))?;
        let cells: Vec<_> = rows(&before, &now).into_iter().map(|row: Row| row.cells).collect();
        let summary = Summary::of(&now);
        if !print_more(&format!("{summary}\n{}\n", table(HEAD, &cells)))?
            || args.count.is_some_and(|count| tables >= count)
        {
            break;
        }
        before = now;
    }
    Ok(exit::OK)
}

//! `bench images`: images that are elsewhere and opened lazily. A web server on the loopback has an
//! image of 10 GiB, of which only the first part is not a hole.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::FileExt;

use cairn_outcome::failure::{Outcome, system};

use super::peers::Folder;
use super::row::Report;
use super::settings::Settings;
use super::web::Web;
use super::{firstbyte, hydrated};

const NAME: &str = "images";
const IMAGE: &str = "large";
const MIB: u64 = 1 << 20;
const IMAGE_BYTES: u64 = 10 << 30;

/// Runs the benchmark.
///
/// # Errors
/// The server, the image or a volume failed.
pub fn run(settings: &Settings) -> Outcome<Report> {
    let mut report = Report::default();
    if !cfg!(feature = "objects") {
        report.note("images: left out: this build reads no objects");
        return Ok(report);
    }
    let folder = Folder::make()?;
    let filled = settings.pick(64 * MIB, 2 * MIB);
    make_image(&folder, filled)?;
    let Some(web) = Web::start(&settings.web, &folder.path(""))? else {
        let script = settings.web.display();
        report.note(format!("images: left out: needs python3 and the script {script}"));
        return Ok(report);
    };
    firstbyte::run(NAME, settings, (&web, IMAGE), &mut report)?;
    hydrated::run(NAME, settings, &web.uri(IMAGE), filled, &mut report)?;
    Ok(report)
}

fn make_image(folder: &Folder, filled: u64) -> Outcome<()> {
    let path = folder.path(IMAGE);
    let mut rng = fastrand::Rng::with_seed(3);
    let mut piece = vec![0; MIB as usize];
    let mut make = || -> std::io::Result<()> {
        let mut file = OpenOptions::new().write(true).create_new(true).open(&path)?;
        for _ in 0..filled / MIB {
            rng.fill(&mut piece);
            file.write_all(&piece)?;
        }
        file.set_len(IMAGE_BYTES)?;
        file.write_all_at(b"end", IMAGE_BYTES - 3)
    };
    make().map_err(|error| system(path.display().to_string(), "make an image", error))
}

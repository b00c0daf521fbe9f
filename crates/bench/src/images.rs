//! `bench images`: images that are elsewhere and opened lazily. A web server on the loopback has an
//! image of 10 GiB, of which only the first part is not a hole.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use cairn_outcome::failure::{Outcome, system};

use super::firstbyte::Images;
use super::peers::{self, Folder};
use super::row::Report;
use super::settings::Settings;
use super::web::Web;
use super::{firstbyte, hydrated, imagereads};

const NAME: &str = "images";
const IMAGE: &str = "large";
const QCOW2: &str = "large.qcow2";
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
    make_image(&folder.path(IMAGE), filled, IMAGE_BYTES)?;
    let Some(web) = Web::start(&settings.web, &folder.path(""))? else {
        let script = settings.web.display();
        report.note(format!("images: left out: needs python3 and the script {script}"));
        return Ok(report);
    };
    let mut qcow2 = Vec::new();
    if peers::is_there("qemu-img") {
        imagereads::convert(&folder.path(IMAGE), &folder.path(QCOW2))?;
        qcow2.push(("qcow2 image", format!("qcow2:{}", web.uri(QCOW2))));
        qcow2.push((firstbyte::LOCAL, format!("qcow2:{}", folder.path(QCOW2).display())));
    } else {
        report.note("images: those of qemu are left out: need qemu-img");
    }
    let images = Images { web: &web, image: IMAGE, qcow2: &qcow2, other: filled / 2 };
    firstbyte::run(NAME, settings, &images, &mut report)?;
    hydrated::run(NAME, settings, &web.uri(IMAGE), filled, &mut report)?;
    if !qcow2.is_empty() {
        let (raw, whole) = (folder.path("whole"), folder.path("whole.qcow2"));
        make_image(&raw, filled, filled)?;
        imagereads::convert(&raw, &whole)?;
        imagereads::run(NAME, settings, &whole, &mut report)?;
    }
    Ok(report)
}

/// A file of so many bytes, of which the first ones are random and the rest is a hole.
fn make_image(path: &Path, filled: u64, bytes: u64) -> Outcome<()> {
    let mut rng = fastrand::Rng::with_seed(3);
    let mut piece = vec![0; MIB as usize];
    let mut make = || -> std::io::Result<()> {
        let mut file = File::create(path)?;
        for _ in 0..filled / MIB {
            rng.fill(&mut piece);
            file.write_all(&piece)?;
        }
        file.set_len(bytes)
    };
    make().map_err(|error| system(path.display().to_string(), "make an image", error))
}

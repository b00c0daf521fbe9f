//! `table --kernel`: a script that sets volumes up in the kernel, the lowest first.
//!
//! The kernel takes block devices only, so the script makes a loop device for each file. Options
//! that only cairn has are left out; cairn's own line stands as a comment above each line. A target
//! or device that the kernel does not have is refused.

use std::path::PathBuf;

use cairn_block::{ConfigKind, TableLine, unescape_word};
use cairn_control::arguments::is_path;
use cairn_control::client::Client;
use cairn_control::devices::places;
use cairn_control::report::{ReportLine, VolumeLines};
use cairn_control::verbs::server::ServerInfo;
use cairn_control::verbs::volume::{VolumeList, VolumeTable};
use cairn_outcome::failure::{Outcome, refused};

const HEAD: &str = "\
#!/bin/sh
# Sets up volumes of cairn in the kernel. Run it as root, after the server has ended: the kernel
# does not see the server's locks.
set -eu
# A block device is taken as it is, a file gets a loop device.
device() { if [ -b \"$1\" ]; then echo \"$1\"; else losetup --find --show \"$1\"; fi; }
";

struct Script<'a> {
    server: &'a Client,
    /// The folder of the server's relative paths.
    folder: PathBuf,
    /// The tables of all volumes.
    all: Vec<VolumeLines>,
    text: String,
    /// Paths in the order of their variables.
    devices: Vec<String>,
    volumes: Vec<String>,
}

/// The script for a volume, or for all.
///
/// # Errors
/// There is no server or no such volume, or the kernel has no such target or device.
pub fn script(server: &Client, name: Option<&str>) -> Outcome<String> {
    let names = match name {
        Some(name) => vec![name.to_owned()],
        None => server.ask(&VolumeList {})?.into_iter().map(|info| info.name).collect(),
    };
    let folder = server.ask(&ServerInfo {})?.folder;
    let all = server.ask(&VolumeTable::default())?;
    let (text, devices, volumes) = (HEAD.to_owned(), Vec::new(), Vec::new());
    let mut script = Script { server, folder, all, text, devices, volumes };
    names.iter().try_for_each(|name| script.add_volume(name))?;
    Ok(script.text)
}

impl Script<'_> {
    fn add_volume(&mut self, name: &str) -> Outcome<()> {
        if self.volumes.iter().any(|known| known == name) {
            return Ok(());
        }
        self.volumes.push(name.to_owned());
        let (own, kernels) = (self.lines(name, false)?, self.lines(name, true)?);
        let (mut comments, mut table) = (String::new(), String::new());
        for (own, kernels) in own.iter().zip(&kernels) {
            let (own, mut line) = (line_of(own)?, line_of(kernels)?);
            for snapshot in self.snapshots_of(&own) {
                self.add_volume(&snapshot)?;
            }
            line.args.iter_mut().for_each(|word| *word = heredoc(word));
            for at in places(&own) {
                line.args[at] = match own.args[at].strip_prefix('@') {
                    Some(lower) => {
                        self.add_volume(lower)?;
                        continue;
                    }
                    None => self.variable(name, &own.args[at])?,
                };
            }
            comments.push_str(&format!("# {name}: {own}\n"));
            table.push_str(&format!("{line}\n"));
        }
        self.text.push_str(&format!(
            "\n{comments}dmsetup create {} <<TABLE\n{table}TABLE\n",
            quoted(name)
        ));
        Ok(())
    }

    /// The snapshots that a line keeps up to date: without them it would write past them, and ruin
    /// what they keep.
    fn snapshots_of(&self, line: &TableLine) -> Vec<String> {
        if !["snapshot-origin", "snapshot-merge"].contains(&line.target.as_str()) {
            return Vec::new();
        }
        let is_snapshot = |other: &ReportLine| {
            let origin = other.params.split(' ').next();
            other.target == "snapshot" && origin == line.args.first().map(String::as_str)
        };
        let volumes = self.all.iter().filter(|volume| volume.lines.iter().any(is_snapshot));
        volumes.map(|volume| volume.name.clone()).collect()
    }

    fn lines(&self, name: &str, kernel: bool) -> Outcome<Vec<ReportLine>> {
        let verb = VolumeTable { name: Some(name.to_owned()), inactive: false, kernel };
        Ok(self.server.ask(&verb)?.into_iter().flat_map(|volume| volume.lines).collect())
    }

    /// The variable that holds the block device of a path.
    fn variable(&mut self, volume: &str, word: &str) -> Outcome<String> {
        if !is_path(word) {
            let expected = "a file or block device, which the kernel can open";
            return Err(refused(ConfigKind::Unsupported, volume, "device", word, expected));
        }
        let path = self.folder.join(unescape_word(word)).to_string_lossy().into_owned();
        let known = self.devices.iter().position(|known| *known == path);
        let at = known.unwrap_or_else(|| {
            let at = self.devices.len();
            self.text.push_str(&format!("\nd{at}=$(device {})", quoted(&path)));
            self.devices.push(path);
            at
        });
        Ok(format!("$d{at}"))
    }
}

fn line_of(line: &ReportLine) -> Outcome<TableLine> {
    TableLine::parse(&line.to_string())
}

/// A text as one word of the shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A word that the shell leaves alone in a document.
fn heredoc(word: &str) -> String {
    word.replace('\\', r"\\").replace('$', r"\$").replace('`', r"\`")
}

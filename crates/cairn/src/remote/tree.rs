//! `ls --tree`: the volumes, each over the devices that its table names.

use std::path::{Component, Path, PathBuf};

use cairn_block::unescape_word;
use cairn_control::arguments::is_path;
use cairn_control::devices::named_in;
use cairn_control::report::VolumeLines;

/// The devices that the lines of a volume name, each once.
fn lowers(volume: &VolumeLines) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for line in &volume.lines {
        for word in named_in(&line.to_string()) {
            if !all.contains(&word) {
                all.push(word);
            }
        }
    }
    all
}

/// The tree. Volumes that no other volume stands on are at the left.
pub fn tree(volumes: &[VolumeLines]) -> String {
    let beneath: Vec<String> = volumes.iter().flat_map(lowers).collect();
    let is_top = |volume: &&VolumeLines| !beneath.contains(&format!("@{}", volume.name));
    let mut text = String::new();
    for top in volumes.iter().filter(is_top) {
        text.push_str(&format!("{}\n", top.name));
        add_lowers(&mut text, volumes, top, "");
    }
    text
}

fn add_lowers(text: &mut String, volumes: &[VolumeLines], of: &VolumeLines, indent: &str) {
    let lowers = lowers(of);
    for (at, lower) in lowers.iter().enumerate() {
        let is_last = at + 1 == lowers.len();
        let (branch, below) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
        let name = lower.strip_prefix('@');
        let shown = name.map_or_else(|| shown(lower), str::to_owned);
        text.push_str(&format!("{indent}{branch}{shown}\n"));
        let volume = name.and_then(|name| volumes.iter().find(|volume| volume.name == name));
        if let Some(volume) = volume {
            add_lowers(text, volumes, volume, &format!("{indent}{below}"));
        }
    }
}

/// A device for a person: a path without `.`, and without `..` if its folder is on this machine.
/// The file's own name stays, as it may be a symbolic link, say of /dev/disk/by-id.
fn shown(device: &str) -> String {
    if !is_path(device) {
        return device.to_owned();
    }
    let path = unescape_word(device);
    let parts = Path::new(&path).components().filter(|part| *part != Component::CurDir);
    let path: PathBuf = parts.collect();
    let goes_up = path.is_absolute() && path.components().any(|part| part == Component::ParentDir);
    let resolved = match (path.parent(), path.file_name()) {
        (Some(folder), Some(name)) if goes_up => {
            folder.canonicalize().ok().map(|folder| folder.join(name))
        }
        _ => None,
    };
    resolved.unwrap_or(path).display().to_string()
}

#[cfg(test)]
mod tests {
    use super::{shown, tree};
    use cairn_control::report::{ReportLine, VolumeLines};

    #[test]
    fn volumes_stand_over_their_devices() {
        let volume = |name: &str, target: &str, params: &str| {
            let (target, params, fields) = (target.into(), params.into(), Default::default());
            let line = ReportLine { start: 0, length: 8, target, params, fields };
            VolumeLines { name: name.into(), lines: vec![line] }
        };
        let volumes = [
            volume("base", "linear", "slow.img 0"),
            volume("vm", "writecache", "s @base fast.img 4096 0"),
            volume("empty", "zero", ""),
        ];
        let expected = "vm\n├─ base\n│  └─ slow.img\n└─ fast.img\nempty\n";
        assert_eq!(tree(&volumes), expected);
    }

    #[test]
    fn paths_are_shown_as_a_person_writes_them() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        std::fs::create_dir(folder.join("e")).unwrap();
        std::fs::create_dir(folder.join("my disks")).unwrap();
        std::os::unix::fs::symlink("my disks", folder.join("link")).unwrap();
        let word = format!("{}/e/.././/link/../my\\040disks/a.img", folder.display());
        assert_eq!(shown(&word), format!("{}/my disks/a.img", folder.display()));
        assert_eq!(shown("/none/here/../a.img"), "/none/here/../a.img", "no such folder");
        for (device, text) in [("./a.img", "a.img"), ("mem:1M", "mem:1M"), ("../a\\040b", "../a b")]
        {
            assert_eq!(shown(device), text);
        }
    }
}

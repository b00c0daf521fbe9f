//! `ls --tree`: the volumes, each over the devices that its table names.

use cairn_block::TableLine;
use cairn_control::devices::places;
use cairn_control::report::VolumeLines;

/// The devices that the lines of a volume name, each once.
fn lowers(volume: &VolumeLines) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for line in &volume.lines {
        let text = format!("{} {} {} {}", line.start, line.length, line.target, line.params);
        let Ok(line) = TableLine::parse(&text) else { continue };
        let words = places(&line).into_iter().map(|at| line.args[at].clone());
        words.for_each(|word| {
            if !all.contains(&word) {
                all.push(word);
            }
        });
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
        text.push_str(&format!("{indent}{branch}{}\n", name.unwrap_or(lower)));
        let volume = name.and_then(|name| volumes.iter().find(|volume| volume.name == name));
        if let Some(volume) = volume {
            add_lowers(text, volumes, volume, &format!("{indent}{below}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::tree;
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
}

//! `resize`: gives the last line of a volume's table another length while clients use the volume.
//!
//! Only the content of a `linear` or `thin` line does not depend on its length. The verb is a
//! [`replace`](super::VolumeReplace) by the same table with the new length: it has the checks, the
//! order and the crash argument of `replace`.

use cairn_block::{ConfigError, ConfigKind, Sector, TableLine};
use cairn_outcome::failure::{Outcome, wrong};

use super::VolumeReplace;
use crate::arguments::bytes;
use crate::control::server::Caller;
use crate::reach::Named;
use crate::verbs::Verbs;
use crate::verbs::verb::{Done, declare};

/// The targets whose lines can have another length.
const RESIZABLE: [&str; 2] = ["linear", "thin"];

declare! {
    /// `resize`
    VolumeResize = "volume_resize" -> Done {
        /// The volume
        name: String,
        /// The new size of the volume, like 100G
        #[arg(value_name = "SIZE", value_parser = bytes())]
        size_bytes: u64,
    } flags {
        /// Make a volume shorter although clients or other volumes use it
        shrink,
    }
    |verb, verbs, caller| verbs.resize(verb, caller)
}

impl Verbs {
    fn resize(&self, params: VolumeResize, caller: &dyn Caller) -> Outcome<Vec<String>> {
        let VolumeResize { name, size_bytes, shrink } = params;
        self.world.volume(&name)?;
        let changes = self.change_table(&Named::volume(&name), "resize", caller)?;
        // In the turn that replaces it: no other verb's table is undone.
        let table = changes.record_of(&name).table.unwrap_or_default();
        let table = resized(&name, &table, size_bytes)?;
        let params = VolumeReplace { name, table, shrink, ..VolumeReplace::default() };
        self.replace_in_turn(changes, &params, caller)
    }
}

/// A table whose last line ends at so many bytes.
fn resized(name: &str, table: &str, bytes: u64) -> Outcome<String> {
    let mut lines = TableLine::parse_all(table)?;
    let last = lines.last_mut().filter(|line| RESIZABLE.contains(&line.target.as_str()));
    let last = last.ok_or_else(|| {
        let detail = "the last line of the table is neither linear nor thin; replace the table";
        ConfigError::new(ConfigKind::Argument, name, detail)
    })?;
    let end = Sector(bytes / 512);
    if !bytes.is_multiple_of(512) || end <= last.start {
        let expected = format!("whole sectors, beyond the {} that other lines take", last.start);
        return Err(wrong(name, "size", format!("{bytes} bytes"), expected));
    }
    last.len = end - last.start;
    Ok(lines.iter().map(|line| format!("{line}\n")).collect())
}

#[cfg(test)]
mod tests {
    use super::resized;

    #[test]
    fn last_line_ends_at_the_new_size() {
        let table = "0 8 zero\n8 8 linear a 16";
        assert_eq!(resized("v", table, 16384).unwrap(), "0 8 zero\n8 24 linear a 16\n");
        assert_eq!(resized("v", table, 4608).unwrap(), "0 8 zero\n8 1 linear a 16\n");
        for (table, bytes, found) in [
            (table, 4096, "size: found 4096 bytes"),
            (table, 5000, "size: found 5000 bytes"),
            ("0 8 zero", 8192, "the last line of the table is neither linear nor thin"),
        ] {
            let line = resized("v", table, bytes).unwrap_err().to_string();
            assert!(line.contains(found), "{line}");
        }
    }
}

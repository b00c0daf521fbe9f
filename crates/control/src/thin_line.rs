//! The table line of a thin volume, as verbs take it apart and put it together.

use cairn_block::{MappedDevice, TableLine};
use cairn_targets::spec::words_of;

/// `0 SECTORS thin @POOL ID [ORIGIN]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThinLine {
    /// Its length.
    pub sectors: u64,
    /// The pool.
    pub pool: String,
    /// Which volume of the pool.
    pub id: u32,
    /// The external origin, as the table names it.
    pub origin: Option<String>,
}

impl ThinLine {
    /// Of a table that is one such line.
    pub fn of_table(text: &str) -> Option<ThinLine> {
        let lines = TableLine::parse_all(text).ok()?;
        let [line] = lines.as_slice() else { return None };
        ThinLine::of_line(line)
    }

    /// Of a volume whose live table is one such line.
    pub fn of_volume(volume: &MappedDevice) -> Option<ThinLine> {
        let table = volume.live_table()?;
        let [line] = table.lines() else { return None };
        ThinLine::of_line(&line.to_table_line())
    }

    fn of_line(line: &TableLine) -> Option<ThinLine> {
        let words = words_of(line).filter(|_| line.target == "thin")?.1;
        let pool = words.argument("pool")?.strip_prefix('@')?.to_owned();
        let id = words.argument("id")?.parse().ok()?;
        let origin = words.argument("origin").map(str::to_owned);
        Some(ThinLine { sectors: line.len.0, pool, id, origin })
    }

    /// The line.
    pub fn text(&self) -> String {
        let ThinLine { sectors, pool, id, origin } = self;
        match origin {
            Some(origin) => format!("0 {sectors} thin @{pool} {id} {origin}"),
            None => format!("0 {sectors} thin @{pool} {id}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::ThinLine;

    #[test]
    fn a_line_is_taken_apart_and_put_together() {
        for text in ["0 128 thin @p 0", "0 7 thin @p 16777215 /base.img"] {
            assert_eq!(ThinLine::of_table(text).unwrap().text(), text);
        }
        for text in ["0 8 zero", "0 8 thin @p", "0 8 thin p 0", "0 8 thin @p 0\n8 8 zero", ""] {
            assert_eq!(ThinLine::of_table(text), None, "{text}");
        }
    }
}

//! Tables as they are recorded once they serve: without words that ask for something to be done
//! once, when the table starts.

use cairn_block::TableLine;
use cairn_targets::bcache::without_attach;

/// The table without such words. A text that is no table stays as it is.
pub fn lasting(table: &str) -> String {
    let Ok(mut lines) = TableLine::parse_all(table) else { return table.to_owned() };
    let before = lines.clone();
    lines.iter_mut().for_each(without_attach);
    if lines == before {
        return table.to_owned();
    }
    lines.iter().map(TableLine::to_string).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::lasting;

    #[test]
    fn words_that_were_acted_upon_are_not_recorded() {
        for (table, expected) in [
            ("0 8 bcache b c 1 attach", "0 8 bcache b c 0"),
            ("0 8 zero\n8 8 bcache b c 1 attach\n", "0 8 zero\n8 8 bcache b c 0"),
            ("0  8 bcache b c 0\n", "0  8 bcache b c 0\n"),
            ("0 8 linear attach 0", "0 8 linear attach 0"),
            ("no table", "no table"),
        ] {
            assert_eq!(lasting(table), expected);
        }
    }
}

//! [`Version`]: a row as it is run, as the text of its experiment.

use cairn_outcome::failure::{Outcome, wrong};

use super::rows::{Quick, ROWS, Row};

/// A row at a block size.
pub struct Version {
    /// The row.
    pub row: &'static Row,
    /// The name of its page and file, without an end.
    pub stem: String,
    /// Its experiment.
    pub text: String,
}

/// The rows of these names, or all if none is named, each with blocks of 4 KiB and of 64 KiB.
/// Quick ones are without the rows that [`left_out`] names.
///
/// # Errors
/// There is no such row.
pub fn versions(names: &[String], quick: bool) -> Outcome<Vec<Version>> {
    for name in names {
        if !ROWS.iter().any(|row| row.name == name) {
            let known: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
            return Err(wrong("ROW", "name", format!("'{name}'"), known.join(", ")));
        }
    }
    let mut all = Vec::new();
    for row in wanted(names) {
        let text = match (quick, row.quick) {
            (false, _) => row.text.to_owned(),
            (true, Quick::Left) => continue,
            (true, Quick::Scale(scale)) => scaled(row.text, scale),
        };
        all.push(Version { row, stem: format!("{}-64k", row.name), text: with_64k(&text) });
        all.insert(all.len() - 1, Version { row, stem: row.name.to_owned(), text });
    }
    Ok(all)
}

/// Those of the rows of these names that `quick` leaves out.
pub fn left_out(names: &[String]) -> Vec<&'static str> {
    let left = wanted(names).filter(|row| matches!(row.quick, Quick::Left));
    left.map(|row| row.name).collect()
}

fn wanted(names: &[String]) -> impl Iterator<Item = &'static Row> {
    ROWS.iter().filter(|row| names.is_empty() || names.iter().any(|it| it == row.name))
}

/// The text with blocks of 64 KiB. The first block of a file is that of its dirty data.
fn with_64k(text: &str) -> String {
    text.replacen("block = \"4K\"", "block = \"64K\"", 1).replacen("4 KiB", "64 KiB", 1)
}

/// The text with another scale.
pub fn scaled(text: &str, scale: u64) -> String {
    let line = |line: &str| match line.starts_with("scale = ") {
        true => format!("scale = {scale}\n"),
        false => format!("{line}\n"),
    };
    text.lines().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::form::Experiment;

    fn named(rows: &[&str], quick: bool) -> Outcome<Vec<Version>> {
        versions(&rows.iter().map(|&name| name.to_owned()).collect::<Vec<_>>(), quick)
    }

    #[test]
    fn versions_differ_in_the_block_of_what_is_dirty_alone() {
        let all = named(&[], false).expect("all rows");
        assert_eq!(all.len(), 2 * ROWS.len());
        for pair in all.chunks(2) {
            let parse = |version: &Version| {
                let parsed = Experiment::parse(&version.text, "x.toml");
                parsed.expect("a row has a meaning")
            };
            let (mut small, mut large) = (parse(&pair[0]), parse(&pair[1]));
            let block = |it: &mut Experiment| {
                std::mem::take(&mut it.fill.as_mut().expect("dirty data").block_sectors)
            };
            assert_eq!((block(&mut small), block(&mut large)), (8, 128), "{}", pair[0].stem);
            large.about.clone_from(&small.about);
            assert!(small == large, "{}", pair[0].stem);
        }
    }

    #[test]
    fn quick_rows_have_larger_scales() {
        let all = named(&["row-1.1", "row-2.1"], true).expect("both are rows");
        let scales: Vec<(String, u64)> = all
            .iter()
            .map(|it| (it.stem.clone(), Experiment::parse(&it.text, "x").expect("a row").scale))
            .collect();
        let expected = [("row-1.1".to_owned(), 1024), ("row-1.1-64k".to_owned(), 1024)];
        assert_eq!(scales, expected);
        assert_eq!(left_out(&["row-1.1".to_owned(), "row-2.1".to_owned()]), ["row-2.1"]);
    }

    #[test]
    fn a_row_that_is_not_there_is_refused_with_the_names_of_all() {
        let refused = named(&["row-1"], false).err().expect("no such row").to_string();
        assert!(refused.starts_with("ROW: name: found 'row-1', expected row-1.1, "), "{refused}");
    }
}

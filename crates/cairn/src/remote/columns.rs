//! Tables for a person: a head, aligned columns, and sizes in units or in bytes.

/// How sizes are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// In the largest unit that leaves a number of at least 1: `1.5G`.
    Human,
    /// In bytes.
    Bytes,
}

const UNITS: [&str; 7] = ["B", "K", "M", "G", "T", "P", "E"];

impl Sizes {
    /// A size in one word.
    pub fn text(self, bytes: u64) -> String {
        if self == Sizes::Bytes {
            return bytes.to_string();
        }
        let power = bytes.checked_ilog2().unwrap_or(0) / 10;
        let (unit, name) = (1u64 << (10 * power), UNITS[power as usize]);
        match bytes.is_multiple_of(unit) {
            true => format!("{}{name}", bytes / unit),
            false => format!("{:.1}{name}", bytes as f64 / unit as f64),
        }
    }

    /// The same, or `-` if there is none.
    pub fn maybe(self, bytes: Option<u64>) -> String {
        bytes.map_or("-".to_owned(), |bytes| self.text(bytes))
    }
}

/// Rows under a head. Columns of numbers and sizes are aligned on the right.
pub fn table<const N: usize>(head: [&str; N], rows: &[[String; N]]) -> String {
    let is_number = |cell: &String| cell == "-" || cell.starts_with(|c: char| c.is_ascii_digit());
    let columns = std::array::from_fn::<_, N, _>(|at| {
        let cells = || rows.iter().map(|row| &row[at]);
        let width = cells().map(|cell| cell.chars().count()).max().unwrap_or(0);
        (width.max(head[at].len()), cells().all(is_number))
    });
    let line = |cells: [&str; N]| {
        let padded = cells.iter().zip(columns).map(|(cell, (width, right))| match right {
            true => format!("{cell:>width$}"),
            false => format!("{cell:<width$}"),
        });
        format!("{}\n", padded.collect::<Vec<_>>().join("  ").trim_end())
    };
    let rows = rows.iter().map(|row| line(row.each_ref().map(String::as_str)));
    std::iter::once(line(head)).chain(rows).collect()
}

#[cfg(test)]
mod tests {
    use super::{Sizes, table};

    #[test]
    fn sizes_are_one_word_in_the_largest_unit_that_fits() {
        let cases = [(0, "0B"), (512, "512B"), (1 << 20, "1M"), (3 << 29, "1.5G"), (1000, "1000B")];
        for (bytes, text) in cases {
            assert_eq!(Sizes::Human.text(bytes), text);
            assert_eq!(Sizes::Bytes.text(bytes), bytes.to_string());
        }
        assert_eq!(Sizes::Human.text(u64::MAX), "16.0E");
        assert_eq!(Sizes::Bytes.maybe(None), "-");
    }

    #[test]
    fn words_are_aligned_on_the_left_and_numbers_on_the_right() {
        let rows = [["vm", "1G", "x"], ["scratch", "-", "long"]].map(|row| row.map(str::to_owned));
        let expected = "NAME     SIZE  STORE\nvm         1G  x\nscratch     -  long\n";
        assert_eq!(table(["NAME", "SIZE", "STORE"], &rows), expected);
    }
}

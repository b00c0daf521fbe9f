//! [`Table`]: rows of texts and numbers, already printed.

use serde_json::{Map, Value};

use super::text::{csv_line, escape};

/// Rows under headers. The first field of a row is its name.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// What the rows are.
    pub caption: String,
    /// The header of each column.
    pub columns: Vec<String>,
    /// Each as long as the columns.
    pub rows: Vec<Vec<String>>,
}

impl Table {
    /// A table without rows.
    pub fn new(caption: &str, columns: &[&str]) -> Table {
        let columns = columns.iter().map(|&column| column.to_owned()).collect();
        Table { caption: caption.to_owned(), columns, rows: Vec::new() }
    }

    /// Adds a row.
    ///
    /// # Panics
    /// If it has more or fewer fields than there are columns.
    pub fn row(&mut self, fields: &[&str]) {
        assert_eq!(fields.len(), self.columns.len(), "a field for each column");
        self.rows.push(fields.iter().map(|&field| field.to_owned()).collect());
    }

    /// As HTML. Columns of numbers are aligned on the right.
    pub(super) fn html(&self) -> String {
        let mut out = format!("<table>\n<caption>{}</caption>\n<thead><tr>", escape(&self.caption));
        for (i, column) in self.columns.iter().enumerate() {
            let column = escape(column);
            out += &format!("<th scope=\"col\"{}>{column}</th>", self.class(i));
        }
        out += "</tr></thead>\n<tbody>\n";
        for row in &self.rows {
            out += "<tr>";
            for (i, field) in row.iter().enumerate() {
                let field = escape(field);
                out += &match i {
                    0 => format!("<th scope=\"row\">{field}</th>"),
                    _ => format!("<td{}>{field}</td>", self.class(i)),
                };
            }
            out += "</tr>\n";
        }
        out + "</tbody>\n</table>\n"
    }

    /// As lines of a terminal, in columns.
    pub(super) fn text(&self) -> String {
        let lines = || std::iter::once(&self.columns).chain(&self.rows);
        let widths: Vec<usize> = (0..self.columns.len())
            .map(|i| lines().map(|row| row[i].chars().count()).max().unwrap_or_default())
            .collect();
        let mut out = format!("{}\n", self.caption);
        for row in lines() {
            let fields = row.iter().zip(&widths).enumerate();
            let fields = fields.map(|(i, (field, &width))| match i {
                0 => format!("{field:<width$}"),
                _ => format!("{field:>width$}"),
            });
            out += fields.collect::<Vec<_>>().join("  ").trim_end();
            out.push('\n');
        }
        out
    }

    /// Headers, then rows.
    pub fn csv(&self) -> String {
        let rows = std::iter::once(&self.columns).chain(&self.rows);
        rows.map(csv_line).collect()
    }

    /// An object per row: the table's caption, and each field by its header.
    pub fn to_json(&self) -> Vec<Value> {
        let object = |row: &Vec<String>| {
            let fields = self.columns.iter().zip(row);
            let fields = fields.map(|(column, field)| (column.clone(), field.clone().into()));
            let fields: Map<String, Value> = fields.collect();
            serde_json::json!({ "table": self.caption, "row": fields })
        };
        self.rows.iter().map(object).collect()
    }

    fn class(&self, column: usize) -> &'static str {
        let begins_like_number = |field: &String| {
            field.is_empty() || field.starts_with(|c: char| c.is_ascii_digit() || c == '-')
        };
        let is_number = column > 0 && self.rows.iter().all(|row| begins_like_number(&row[column]));
        if is_number { " class=\"number\"" } else { "" }
    }
}

#[cfg(test)]
mod tests {
    use super::Table;

    fn table() -> Table {
        let mut table = Table::new("Drains <all>", &["policy", "time", "note"]);
        table.row(&["sweep", "1.5 h", "a, b"]);
        table.row(&["strict", "3.0 h", ""]);
        table
    }

    #[test]
    fn table_has_a_caption_and_headers_with_scopes() {
        let html = table().html();
        assert!(html.contains("<caption>Drains &lt;all&gt;</caption>"), "{html}");
        assert!(html.contains("<th scope=\"col\" class=\"number\">time</th>"), "{html}");
        assert!(html.contains("<th scope=\"row\">sweep</th>"), "{html}");
        assert!(html.contains("<td class=\"number\">1.5 h</td><td>a, b</td>"), "{html}");
    }

    #[test]
    fn data_of_a_table_is_its_rows() {
        assert_eq!(table().csv(), "policy,time,note\nsweep,1.5 h,\"a, b\"\nstrict,3.0 h,\n");
        let row = table().to_json()[0].to_string();
        assert!(row.contains("\"table\":\"Drains <all>\""), "{row}");
        assert!(row.contains("\"time\":\"1.5 h\""), "{row}");
    }
}

//! Lengths given as `N` or `whole`: the line is as long as its devices allow.
//!
//! The number is computed once, before the table is loaded. Records and printed tables have the
//! number, so that a device that grows later changes no table.

use cairn_block::{SectorCount, TableLine};
use cairn_outcome::failure::Outcome;
use cairn_targets::spec::Measure;

/// What gives a line its length.
pub enum Asked<'a> {
    /// The size of this device.
    Size(&'a str),
    /// What the target finds on the devices of these words.
    Content(Measure, &'a [String]),
}

/// The text with the number in place of `N` or `whole`, which `ask` finds out.
///
/// # Errors
/// The text is no table, or there is no length to take.
pub fn measured(
    text: &str,
    mut ask: impl FnMut(Asked<'_>) -> Outcome<SectorCount>,
) -> Outcome<String> {
    let mut lines = TableLine::parse_all(text)?;
    // No line follows one without a number.
    let Some(last) = lines.last_mut().filter(|last| last.len == TableLine::WHOLE) else {
        return Ok(text.to_owned());
    };
    // An unknown target is refused when the table is built.
    if let Some(spec) = cairn_targets::spec(&last.target) {
        let words = last.args.iter().map(String::as_str);
        last.len = match spec.measure {
            Some(measure) => ask(Asked::Content(measure, &last.args))?,
            None => spec.length(words, |device| ask(Asked::Size(device)))?,
        };
    }
    Ok(lines.iter().map(TableLine::to_string).collect::<Vec<_>>().join("\n"))
}

/// The sectors of a table that has numbers only.
pub fn sectors_of(text: &str) -> Option<SectorCount> {
    let lines = TableLine::parse_all(text).ok()?;
    let last = lines.last().filter(|last| last.len != TableLine::WHOLE)?;
    Some(SectorCount(last.start.0) + last.len)
}

#[cfg(test)]
mod tests {
    use super::{measured, sectors_of};
    use cairn_block::SectorCount;

    #[test]
    fn the_last_line_may_be_as_long_as_its_device() {
        let measured = |text| measured(text, |_: super::Asked<'_>| Ok(SectorCount(100)));
        let text = "0 8 zero\n8 whole linear /d 4";
        assert_eq!(measured(text).unwrap(), "0 8 zero\n8 96 linear /d 4");
        assert_eq!(measured("0 N linear /d 0").unwrap(), "0 100 linear /d 0");
        assert_eq!(sectors_of("0 8 zero\n8 96 linear /d 4"), Some(SectorCount(104)));
        assert_eq!(sectors_of("0 N linear /d 0"), None);
        let as_given = "  0 8   zero # ";
        assert_eq!(measured(as_given).unwrap(), as_given);
        let follows = measured("0 N linear /d 0\n100 8 zero").unwrap_err().to_string();
        assert_eq!(
            follows,
            "table: length: found no number, expected a number of sectors, as another line follows"
        );
    }
}

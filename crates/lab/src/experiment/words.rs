//! [`Words`]: what stands for something else in the tables and messages of an experiment.
//!
//! - `{variant}`: the word of the variant.
//! - `{name}`: what the experiment's words of this name say of the variant.
//! - `{disk}`: the length of a drive, or of a volume before, in sectors.
//! - `{disk.phase}`: a place on it, by the seed: near its beginning for the first, and far from
//!   those of the seeds before for each later one. `{disk.rest}`: from there to its end. Neither is
//!   0, unless the disk is very small.
//!
//! A volume of two lines, from the phase to the end and then the rest, is a disk whose first sector
//! lies elsewhere with each seed, so the order of writeback begins there.

/// Phases are multiples of so many sectors, 4 MiB: whole chunks and stripes of arrays.
const STEP: u64 = (4 << 20) / 512;

/// The phase of the seeds goes on by this part of 2^64: the golden section.
const TURN: u64 = 0x9E37_79B9_7F4A_7C15;

/// See the module's description.
pub struct Words<'a> {
    variant: &'a str,
    /// The experiment's own, for this variant.
    own: Vec<(&'a str, &'a str)>,
    seed: u64,
    lengths: Vec<(&'a str, u64)>,
}

impl<'a> Words<'a> {
    /// Those of a run, with the lengths of its drives.
    pub fn new(
        variant: &'a str,
        own: Vec<(&'a str, &'a str)>,
        seed: u64,
        drives: impl IntoIterator<Item = (&'a str, u64)>,
    ) -> Words<'a> {
        Words { variant, own, seed, lengths: drives.into_iter().collect() }
    }

    /// A volume has been opened.
    pub fn add(&mut self, volume: &'a str, sectors: u64) {
        self.lengths.push((volume, sectors));
    }

    /// A text with its words put in.
    pub fn put(&self, text: &str) -> String {
        let put =
            |text: String, (name, word): &(&str, &str)| text.replace(&format!("{{{name}}}"), word);
        let text = self.own.iter().fold(text.to_owned(), put);
        let text = text.replace("{variant}", self.variant);
        self.lengths.iter().fold(text, |text, (name, sectors)| {
            let phase = phase(self.seed, *sectors);
            text.replace(&format!("{{{name}}}"), &sectors.to_string())
                .replace(&format!("{{{name}.phase}}"), &phase.to_string())
                .replace(&format!("{{{name}.rest}}"), &sectors.saturating_sub(phase).to_string())
        })
    }
}

/// Where a disk of so many sectors begins with a seed.
fn phase(seed: u64, sectors: u64) -> u64 {
    let part = seed.wrapping_sub(1).wrapping_mul(TURN);
    let at = (u128::from(part) * u128::from(sectors)) >> 64;
    let last = (sectors / STEP).saturating_sub(1);
    (at as u64 / STEP).min(last).max(1) * STEP
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_put_in_and_others_stay() {
        let own = vec![("depth", "9 of {disk}")];
        let mut words = Words::new("sweep", own, 1, [("disk", 32_768)]);
        words.add("array", 65_536);
        let text = "0 {array.rest} x {disk} {array.phase} {variant} {other} {depth}";
        assert_eq!(words.put(text), "0 57344 x 32768 8192 sweep {other} 9 of 32768");
    }

    #[test]
    fn phases_are_steps_apart_from_each_other_and_inside() {
        let sectors = 1000 * STEP;
        let mut phases: Vec<u64> = (1..=20).map(|seed| phase(seed, sectors)).collect();
        assert_eq!(phases[0], STEP);
        assert!(phases.iter().all(|at| at % STEP == 0 && (STEP..sectors).contains(at)));
        phases.sort_unstable();
        let least = phases.windows(2).map(|pair| pair[1] - pair[0]).min();
        assert!(least > Some(20 * STEP), "{phases:?}");
    }
}

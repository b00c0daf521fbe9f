//! The drives of experiments, by the words of a file. Their figures are those that `cairn lab
//! drives` shows.

use std::time::Duration;

use cairn_block::SectorCount;
use cairn_sim::drives::{Hdd, HddFigures, Raid5, Raid5Figures, Ssd, SsdFigures, Timing};

/// A kind of drive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Model {
    /// One arm.
    Hdd,
    /// The same with its write cache turned off.
    HddUncached,
    /// No arm.
    Ssd(Flash),
    /// An md array of so many drives with one arm.
    Raid5 {
        /// How many.
        members: u32,
    },
}

/// A kind of drive without an arm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flash {
    /// SATA, consumer class.
    Sata,
    /// SATA with power-loss protection.
    SataProtected,
    /// NVMe, consumer class.
    Nvme,
    /// NVMe with power-loss protection.
    NvmeProtected,
    /// Optane.
    Optane,
}

impl Flash {
    const WORDS: [(&'static str, Flash, SsdFigures); 5] = [
        ("sata-ssd", Flash::Sata, SsdFigures::SATA),
        ("sata-ssd-protected", Flash::SataProtected, SsdFigures::SATA_PROTECTED),
        ("nvme", Flash::Nvme, SsdFigures::NVME),
        ("nvme-protected", Flash::NvmeProtected, SsdFigures::NVME_PROTECTED),
        ("optane", Flash::Optane, SsdFigures::OPTANE),
    ];

    /// Its figures.
    pub fn figures(self) -> SsdFigures {
        Flash::WORDS[self as usize].2
    }
}

impl Model {
    /// The model of a word, and how many members it has.
    ///
    /// # Errors
    /// There is none: what is expected.
    pub fn of_word(word: &str, members: Option<u32>) -> Result<Model, String> {
        let model = match (word, members) {
            ("raid5", Some(members @ 3..=64)) => return Ok(Model::Raid5 { members }),
            ("raid5", _) => return Err("3 to 64 members".to_owned()),
            ("hdd", _) => Model::Hdd,
            ("hdd-uncached", _) => Model::HddUncached,
            _ => {
                let found = Flash::WORDS.into_iter().find(|(own, ..)| *own == word);
                let words = Flash::WORDS.map(|(own, ..)| own).join(", ");
                Model::Ssd(found.ok_or_else(|| format!("hdd, hdd-uncached, {words} or raid5"))?.1)
            }
        };
        match members {
            None => Ok(model),
            Some(_) => Err("no members (a raid5 has some)".to_owned()),
        }
    }

    /// Its word, with its members.
    pub fn name(self) -> String {
        match self {
            Model::Hdd => "hdd".to_owned(),
            Model::HddUncached => "hdd-uncached".to_owned(),
            Model::Ssd(flash) => Flash::WORDS[flash as usize].0.to_owned(),
            Model::Raid5 { members } => format!("raid5 of {members} hdd"),
        }
    }

    /// A drive of so many bytes. What is random in it follows from the seed. `flush` is the time
    /// that a flush takes of an arm, if it is not the model's.
    pub fn drive(self, bytes: u64, flush: Option<Duration>, seed: u64) -> Box<dyn Timing> {
        let sectors = SectorCount::of_bytes(bytes);
        let figures = HddFigures::NEARLINE;
        let hdd = HddFigures { flush: flush.unwrap_or(figures.flush), ..figures };
        match self {
            Model::Hdd => Box::new(Hdd::new(hdd, sectors)),
            Model::HddUncached => {
                let figures = HddFigures { cache: SectorCount::ZERO, ..hdd };
                Box::new(Hdd::new(figures, sectors))
            }
            Model::Ssd(flash) => Box::new(Ssd::new(flash.figures(), seed)),
            Model::Raid5 { members } => {
                let own = sectors.0.div_ceil(u64::from(members) - 1);
                let chunk = Raid5Figures::MD.chunk.0;
                let own = SectorCount(own.div_ceil(chunk) * chunk);
                let member = |_| -> Box<dyn Timing> { Box::new(Hdd::new(hdd, own)) };
                Box::new(Raid5::new(Raid5Figures::MD, (0..members).map(member).collect()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drive_without_its_cache_has_nothing_volatile() {
        let is_volatile = |model: Model| model.drive(1 << 30, None, 1).nature().volatile;
        assert!(is_volatile(Model::Hdd) && !is_volatile(Model::HddUncached));
    }

    #[test]
    fn words_name_models() {
        for (index, (word, flash, _)) in Flash::WORDS.into_iter().enumerate() {
            assert_eq!(flash as usize, index);
            assert_eq!(Model::of_word(word, None), Ok(Model::Ssd(flash)));
        }
        assert_eq!(Model::of_word("hdd", None), Ok(Model::Hdd));
        assert_eq!(Model::of_word("hdd-uncached", None), Ok(Model::HddUncached));
        assert_eq!(Model::of_word("raid5", Some(4)), Ok(Model::Raid5 { members: 4 }));
        assert!(Model::of_word("raid5", None).is_err());
        assert!(Model::of_word("hdd", Some(4)).is_err());
        assert!(Model::of_word("floppy", None).is_err());
    }
}

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

/// What a drive with an arm has in place of its model's figures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Changes {
    /// How long a flush takes, beyond the writes that it waits for.
    pub flush: Option<Duration>,
    /// Seeks and changes of tracks take this times as long. So does the skew: a drive is laid out
    /// for its arm, and one whose skew is too short loses a turn at each track.
    pub seek: f64,
    /// This times as many commands in the drive, and oldest dirty runs, among which it chooses.
    pub ncq: f64,
    /// The volatile cache is this times as large.
    pub cache: f64,
}

impl Changes {
    /// The drive is its model.
    pub const NONE: Changes = Changes { flush: None, seek: 1.0, ncq: 1.0, cache: 1.0 };

    /// The figures of a drive with these changes.
    pub fn apply(&self, figures: &HddFigures) -> HddFigures {
        let seek = |time: Duration| time.mul_f64(self.seek);
        HddFigures {
            flush: self.flush.unwrap_or(figures.flush),
            skew: seek(figures.skew),
            head_switch: seek(figures.head_switch),
            seek_track: seek(figures.seek_track),
            seek_knee: seek(figures.seek_knee),
            seek_full: seek(figures.seek_full),
            queue: times(figures.queue as u64, self.ncq) as usize,
            window: times(figures.window as u64, self.ncq) as usize,
            cache: SectorCount(times(figures.cache.0, self.cache)),
            ..*figures
        }
    }

    /// In words, for those that are not as in the model; each begins with a comma.
    pub fn describe(&self) -> String {
        let flush = self.flush.map(|flush| format!(", a flush of {flush:?}")).unwrap_or_default();
        let factors = [("seeks", self.seek), ("NCQ", self.ncq), ("write cache", self.cache)];
        let changed = factors.into_iter().filter(|(_, factor)| *factor != 1.0);
        changed.fold(flush, |text, (what, factor)| format!("{text}, {what} x {factor}"))
    }
}

/// A count times a factor, at least 1 of what is not 0.
fn times(count: u64, factor: f64) -> u64 {
    ((count as f64 * factor).round() as u64).max(count.min(1))
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

    /// True if it has an arm.
    pub fn has_arm(self) -> bool {
        !matches!(self, Model::Ssd(_))
    }

    /// True if it has an arm and a write cache.
    pub fn has_arm_with_cache(self) -> bool {
        self.has_arm() && self != Model::HddUncached
    }

    /// A drive of so many bytes. What is random in it follows from the seed. The changes are of
    /// its arms.
    pub fn drive(self, bytes: u64, changes: &Changes, seed: u64) -> Box<dyn Timing> {
        let sectors = SectorCount::of_bytes(bytes);
        let hdd = changes.apply(&HddFigures::NEARLINE);
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
    use crate::load::Loop;
    use crate::workload::Operation;
    use cairn_block::Op;

    #[test]
    fn a_drive_without_its_cache_has_nothing_volatile() {
        let is_volatile = |model: Model| model.drive(1 << 30, &Changes::NONE, 1).nature().volatile;
        assert!(is_volatile(Model::Hdd) && !is_volatile(Model::HddUncached));
    }

    #[test]
    fn without_changes_a_drive_has_the_figures_of_its_model() {
        let (plain, model) = (Changes::NONE.apply(&HddFigures::NEARLINE), HddFigures::NEARLINE);
        assert_eq!(format!("{plain:?}"), format!("{model:?}"));
        assert_eq!(Changes::NONE.describe(), "");
    }

    #[test]
    fn each_change_is_of_its_figures_alone() {
        let model = HddFigures::NEARLINE;
        let changed = |changes: Changes| changes.apply(&model);
        let same = |found: HddFigures| assert_eq!(format!("{found:?}"), format!("{model:?}"));

        let HddFigures { skew, head_switch, seek_track, seek_knee, seek_full, .. } = model;
        let slow = changed(Changes { seek: 1.3, ..Changes::NONE });
        let micros = [slow.skew, slow.head_switch, slow.seek_track, slow.seek_knee, slow.seek_full]
            .map(|time| time.as_micros());
        assert_eq!(micros, [1430, 1170, 1300, 13_650, 20_150]);
        same(HddFigures { skew, head_switch, seek_track, seek_knee, seek_full, ..slow });

        let HddFigures { queue, window, cache, .. } = model;
        for (ncq, expected) in [(0.7, (22, 67)), (1.3, (42, 125)), (0.01, (1, 1))] {
            let found = changed(Changes { ncq, ..Changes::NONE });
            assert_eq!((found.queue, found.window), expected);
            same(HddFigures { queue, window, ..found });
        }
        let small = changed(Changes { cache: 0.7, ..Changes::NONE });
        assert_eq!(small.cache, SectorCount(367_002));
        same(HddFigures { cache, ..small });
    }

    #[test]
    fn drives_with_slower_arms_take_longer() {
        let took = |model: Model, seek: f64| {
            let changes = Changes { seek, ..Changes::NONE };
            let mut drive = model.drive(1 << 40, &changes, 1);
            let mut rng = fastrand::Rng::with_seed(1);
            let step = || Operation::new(Op::Read, rng.u64(..1 << 28) * 8, 8);
            Loop::new(&mut *drive).run(1, 500, step).nanos
        };
        for model in [Model::Hdd, Model::HddUncached, Model::Raid5 { members: 4 }] {
            let [fast, plain, slow] = [0.7, 1.0, 1.3].map(|seek| took(model, seek));
            assert!(fast < plain && plain < slow, "{model:?}: {fast}, {plain}, {slow}");
        }
    }

    #[test]
    fn drives_with_larger_caches_take_more_writes_at_once() {
        let took = |cache: f64| {
            let mut drive = Model::Hdd.drive(1 << 40, &Changes { cache, ..Changes::NONE }, 1);
            let mut rng = fastrand::Rng::with_seed(1);
            let step = || Operation::new(Op::Write, rng.u64(..1 << 28) * 8, 8);
            Loop::new(&mut *drive).run(32, 90_000, step).nanos
        };
        let [small, plain, large] = [0.7, 1.0, 1.3].map(took);
        assert!(large < plain && plain < small, "{large}, {plain}, {small}");
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

//! [`LineCounts`]: what passed each line of a device's live table, on one reactor.
//!
//! A table of several lines counts each part of a request at its line. A single line has what
//! passed its device since it became live: the ready path counts nothing twice. A line keeps its
//! counts as long as the live table has one of its kind at its first sector.

use std::cell::{Cell, RefCell};

use crate::traffic::{DeviceTraffic, LocalTraffic, Traffic};
use crate::units::Sector;

/// See the module's description.
#[derive(Default)]
pub(crate) struct LineCounts {
    lines: RefCell<Vec<Counted>>,
    are_several: Cell<bool>,
}

struct Counted {
    start: Sector,
    target: String,
    /// What had passed when the table became live.
    before: Traffic,
    since: Since,
}

enum Since {
    Own(LocalTraffic),
    /// What passes the device, less what had passed it.
    OfDevice(Traffic),
}

impl Counted {
    fn sum(&self, device: &Traffic) -> Traffic {
        let since = match &self.since {
            Since::Own(counts) => Traffic::of_local(counts),
            Since::OfDevice(before) => device.since(before),
        };
        self.before.with(&since)
    }
}

impl LineCounts {
    /// True if parts of requests are to be counted at their lines.
    #[inline(always)]
    pub fn are_several(&self) -> bool {
        self.are_several.get()
    }

    /// A part has left the line of this number.
    pub fn count(&self, line: u16, count: impl FnOnce(&LocalTraffic)) {
        if let Some(Counted { since: Since::Own(counts), .. }) =
            self.lines.borrow().get(usize::from(line))
        {
            count(counts);
        }
    }

    /// A table with these lines, each with its first sector and kind of target, is live from now
    /// on. `device` is what has passed the device.
    pub fn follow<'a>(
        &self,
        lines: impl ExactSizeIterator<Item = (Sector, &'a str)>,
        device: &LocalTraffic,
    ) {
        let (former, device) = (self.lines.take(), Traffic::of_local(device));
        let are_several = lines.len() > 1;
        let counted = lines.map(|(start, target)| {
            let is_same = |counted: &&Counted| counted.start == start && counted.target == target;
            let same = former.iter().find(is_same);
            let before = same.map_or_else(Traffic::default, |counted| counted.sum(&device));
            let since = match are_several {
                true => Since::Own(LocalTraffic::default()),
                false => Since::OfDevice(device),
            };
            Counted { start, target: target.to_owned(), before, since }
        });
        self.lines.replace(counted.collect());
        self.are_several.set(are_several);
    }

    /// Adds what has passed the device and its lines.
    pub fn add_to(&self, device: &LocalTraffic, sum: &mut DeviceTraffic) {
        let device = Traffic::of_local(device);
        sum.add(&device);
        for counted in &*self.lines.borrow() {
            sum.add_line(counted.start, &counted.target, &counted.sum(&device));
        }
    }
}

//! [`Geometry`]: where the sectors of a platter are, and how long the arm takes to reach them.
//!
//! Sectors fill a track, then the same cylinder under the next head, then the next cylinder, from
//! the outer edge inwards. Tracks are shorter towards the inside, in steps (zones). Each track
//! begins one skew later than the one before, so that data which goes on over its end loses the
//! skew and no turn. The angle under the arm is the time modulo one turn.
//!
//! Seeks are read from a table by distance, so that a choice among many places costs a few
//! nanoseconds for each.

use cairn_block::{Sector, SectorRange, Time};

use super::hdd::HddFigures;

/// Where a sector begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Position {
    pub cylinder: u32,
    pub head: u32,
    /// When in a turn it is under the arm, in nanoseconds.
    pub angle: u32,
    /// Sectors before it on its track.
    pub offset: u32,
    /// Sectors of its track.
    pub track: u32,
}

/// Where the arm is, and since when.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Arm {
    /// Where the last sector that it read or wrote is.
    pub cylinder: u32,
    pub head: u32,
    /// The sector after that one.
    pub at: Sector,
    pub since: Time,
}

/// The arm and the platter at a time.
#[derive(Clone, Copy)]
pub(super) struct Moment<'a> {
    pub arm: &'a Arm,
    /// Three turns without the angle of the platter.
    turns: u32,
    /// The arm came to its place at this time.
    just: bool,
}

/// The time until a sector is under the arm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Approach {
    pub seek: u32,
    pub rotation: u32,
}

impl Approach {
    pub fn total(self) -> u32 {
        self.seek + self.rotation
    }
}

struct Zone {
    start: u64,
    cylinder: u64,
    /// Sectors of a track.
    track: u64,
}

/// The layout of one drive.
pub(super) struct Geometry {
    turn: u64,
    skew: u64,
    heads: u64,
    /// From one track of a cylinder to another.
    pub head_switch: u32,
    setup: u32,
    zones: Vec<Zone>,
    seeks: Seeks,
}

impl Geometry {
    /// The layout of a drive of `sectors`. A smaller drive has fewer cylinders, not other tracks.
    pub fn new(figures: &HddFigures, sectors: u64) -> Geometry {
        let turn = nanos(figures.revolution);
        let heads = figures.heads;
        let inner = figures.outer_track * figures.inner_percent / 100;
        let mean = (figures.outer_track + inner) / 2;
        let cylinders = sectors.div_ceil(heads * mean).max(1);
        let count = figures.zones.min(cylinders);
        let mut zones = Vec::new();
        let mut start = 0;
        for index in 0..count {
            // The density in the middle of the zone, in whole blocks of 4 KiB.
            let less = (figures.outer_track - inner) * (2 * index + 1) / (2 * count);
            let track = (figures.outer_track - less) / 8 * 8;
            let (cylinder, end) = (cylinders * index / count, cylinders * (index + 1) / count);
            zones.push(Zone { start, cylinder, track });
            start += (end - cylinder) * heads * track;
        }
        let skew = nanos(figures.skew);
        let (head_switch, setup) = (nanos(figures.head_switch) as u32, nanos(figures.setup) as u32);
        let seeks = Seeks::new(figures, cylinders);
        Geometry { turn, skew, heads, head_switch, setup, zones, seeks }
    }

    fn zone(&self, sector: Sector) -> &Zone {
        let after = self.zones.partition_point(|zone| zone.start <= sector.0);
        &self.zones[after - 1]
    }

    /// No cylinder has more sectors.
    pub fn longest_cylinder(&self) -> u64 {
        self.heads * self.zones[0].track
    }

    pub fn locate(&self, sector: Sector) -> Position {
        let zone = self.zone(sector);
        let offset = sector.0 - zone.start;
        let (track, offset) = (offset / zone.track, offset % zone.track);
        let (cylinder, head) = (zone.cylinder + track / self.heads, track % self.heads);
        // Skews count from the zone's first track: a turn is lost where zones meet, as on a drive.
        let angle = (track * self.skew + offset * self.turn / zone.track) % self.turn;
        Position {
            cylinder: cylinder as u32,
            head: head as u32,
            angle: angle as u32,
            offset: offset as u32,
            track: zone.track as u32,
        }
    }

    /// How long the data of a range that starts at a place is under the arm, changes of tracks
    /// included.
    pub fn transfer(&self, from: Position, range: SectorRange) -> u64 {
        let time = range.count.0 * self.turn / u64::from(from.track);
        time + track_changes(from, range) * self.skew
    }

    /// The arm at the end of a range that starts at a place.
    pub fn arm_after(&self, from: Position, range: SectorRange, since: Time) -> Arm {
        let at = range.end();
        let changes = track_changes(from, range);
        let last = if changes == 0 { from } else { self.locate(Sector(at.0 - 1)) };
        Arm { cylinder: last.cylinder, head: last.head, at, since }
    }

    /// How many sectors at `at` pass under the arm in a time.
    pub fn passed(&self, at: Sector, nanos: u64) -> u64 {
        nanos * self.zone(at).track / self.turn
    }

    /// The time from `now` until the arm can begin at a sector.
    pub fn approach(&self, arm: &Arm, now: Time, start: Sector, to: Position) -> Approach {
        self.approach_at(&self.moment(arm, now), start, to)
    }

    /// What [`Geometry::approach_at`] needs of the arm at a time.
    pub fn moment<'a>(&self, arm: &'a Arm, now: Time) -> Moment<'a> {
        let angle = now.0 % self.turn;
        Moment { arm, turns: (3 * self.turn - angle) as u32, just: arm.since == now }
    }

    /// If the arm came to its place just now, what follows on the track goes on without a turn.
    #[inline]
    pub fn approach_at(&self, moment: &Moment, start: Sector, to: Position) -> Approach {
        let Moment { arm, just, .. } = *moment;
        let distance = arm.cylinder.abs_diff(to.cylinder);
        let is_on_track = distance == 0 && arm.head == to.head;
        if just && is_on_track && arm.at == start {
            return Approach::default();
        }
        let seek = match distance {
            0 if is_on_track => self.setup,
            0 => self.head_switch,
            _ => self.seeks.time(distance),
        };
        Approach { seek, rotation: self.rotation(moment, seek, to.angle) }
    }

    /// How long an angle takes to come under the arm after a seek.
    #[inline]
    pub fn rotation(&self, moment: &Moment, seek: u32, angle: u32) -> u32 {
        let turn = self.turn as u32;
        // Seeks of slow arms alone take longer.
        let seek = if seek < 2 * turn { seek } else { seek % turn };
        // The sum is below four turns. What would be below zero wraps and is larger.
        let sum = angle + moment.turns - seek;
        let sum = sum.min(sum.wrapping_sub(2 * turn));
        sum.min(sum.wrapping_sub(turn))
    }

    /// The least time to another cylinder.
    #[inline]
    pub fn seek(&self, distance: u32) -> u32 {
        self.seeks.time(distance)
    }
}

/// How often the track ends within a range that starts at a place.
fn track_changes(from: Position, range: SectorRange) -> u64 {
    let last = u64::from(from.offset) + range.count.0 - 1;
    if last < u64::from(from.track) { 0 } else { last / u64::from(from.track) }
}

/// Seek times by distance: exact for the nearest cylinders, by classes of equal width beyond.
struct Seeks {
    near: Vec<u32>,
    far: Vec<u32>,
    shift: u32,
}

impl Seeks {
    const NEAR: u32 = 1024;
    const FAR: u64 = 1024;

    fn new(figures: &HddFigures, cylinders: u64) -> Seeks {
        let longest = cylinders.saturating_sub(1).max(1);
        let mut shift = 0;
        while longest >> shift >= Seeks::FAR {
            shift += 1;
        }
        let time = |distance: u64| seek(figures, distance.min(longest), longest);
        let near = (0..u64::from(Seeks::NEAR)).map(time).collect();
        // The end of a class, so that times rise with the distance from the last near one on too.
        let end = |class: u64| time(((class + 1) << shift) - 1);
        Seeks { near, far: (0..=longest >> shift).map(end).collect(), shift }
    }

    #[inline]
    fn time(&self, distance: u32) -> u32 {
        if distance < Seeks::NEAR {
            return self.near[distance as usize];
        }
        // Sectors beyond the computed end lie on the last cylinders.
        let class = (distance >> self.shift) as usize;
        self.far[class.min(self.far.len() - 1)]
    }
}

/// The seek over `distance` of `longest` cylinders: a + b sqrt(d) to the knee, then linear.
fn seek(figures: &HddFigures, distance: u64, longest: u64) -> u32 {
    if distance == 0 {
        return 0;
    }
    let [track, knee, full] =
        [figures.seek_track, figures.seek_knee, figures.seek_full].map(|time| nanos(time) as f64);
    // From the nearest cylinder, so that its seek is the same on a drive of any size.
    let share = (distance - 1) as f64 / longest.saturating_sub(1).max(1) as f64;
    let at_knee = figures.knee_percent as f64 / 100.0;
    let time = if share <= at_knee {
        track + (knee - track) * (share / at_knee).sqrt()
    } else {
        knee + (full - knee) * (share - at_knee) / (1.0 - at_knee)
    };
    time as u32
}

pub(super) fn nanos(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).expect("a figure of a drive is below 500 years")
}

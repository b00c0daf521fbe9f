//! Ghosts: sectors for which the device may have a clean key that the tree in memory has not (N5).

use cairn_format::bcache::Key;

use crate::bcache::btree::{Span, Unwritten};

/// See the module's description.
#[derive(Default)]
pub(in super::super) struct Ghosts {
    /// Of evicted extents, since the last checkpoint began, and before it.
    evicted: Unwritten,
    settling: Unwritten,
    /// Where holes are on their way into the journal.
    holes: Vec<Span>,
}

impl Ghosts {
    /// True if one of these sectors is a ghost, and no hole of it is on its way.
    pub fn overlap(&self, span: &Span) -> bool {
        self.evicted.overlaps(span) || self.settling.overlaps(span)
    }

    /// True if a hole of one of these sectors is on its way.
    pub fn overlap_hole(&self, span: &Span) -> bool {
        self.holes.iter().any(|own| own.overlaps(span))
    }

    /// These extents were evicted: the holes that they leave.
    pub fn evict(&mut self, holes: &[Key]) {
        self.evicted.add(holes);
    }

    /// A hole of these sectors was laid, and is pending.
    pub fn lay(&mut self, span: Span) {
        self.evicted.remove(&span);
        self.settling.remove(&span);
        self.holes.push(span);
    }

    /// That hole is durable.
    pub fn end_hole(&mut self, span: &Span) {
        let index = self.holes.iter().position(|own| own == span);
        self.holes.swap_remove(index.expect("it was laid"));
    }

    /// A checkpoint begins.
    pub fn begin_checkpoint(&mut self) {
        let evicted = std::mem::take(&mut self.evicted);
        self.settling.join(evicted);
    }

    /// It has ended: leaves have the holes.
    pub fn end_checkpoint(&mut self) {
        self.settling = Unwritten::default();
    }
}

#[cfg(test)]
mod tests {
    use cairn_format::bcache::Key;

    use super::{Ghosts, Span};

    #[test]
    fn a_sector_is_a_ghost_until_a_hole_or_a_checkpoint_is_durable() {
        let span = |start, end| Span { inode: 0, start, end };
        let mut ghosts = Ghosts::default();
        ghosts.evict(&[Key::new(0, 20, 10)]);
        ghosts.begin_checkpoint();
        ghosts.evict(&[Key::new(0, 40, 10)]);
        ghosts.lay(span(0, 15));
        assert!(ghosts.overlap_hole(&span(0, 1)) && !ghosts.overlap_hole(&span(15, 50)));
        assert!([(15, 16), (19, 35)].iter().all(|it| ghosts.overlap(&span(it.0, it.1))));
        assert!(!ghosts.overlap(&span(20, 30)) && !ghosts.overlap(&span(0, 15)));
        ghosts.end_hole(&span(0, 15));
        assert!(!ghosts.overlap_hole(&span(0, 15)) && ghosts.overlap(&span(15, 16)));
        ghosts.end_checkpoint();
        assert!(!ghosts.overlap(&span(0, 30)) && ghosts.overlap(&span(39, 40)));
    }
}

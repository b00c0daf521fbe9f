//! Generations: an 8-bit number per bucket that makes pointers into a reused bucket worthless.
//!
//! A pointer holds the generation that its bucket had. The bucket's own only ever grows, so that
//! differences count modulo 256; nothing else in cairn compares generations.

/// A pointer this far behind its bucket is more than the kernel tolerates: buckets are not reused
/// once the oldest pointer into them would be.
pub const STALE_MAX: u8 = 96;

/// A generation of a bucket or a pointer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Generation(pub u8);

/// How a pointer's generation compares with that of its bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Age {
    /// They are equal: the pointer is good.
    Current,
    /// The bucket was reused this many times (1 to 128) since: the pointer leads nowhere.
    Stale(u8),
    /// The pointer was made after what is known of the bucket, whose generation must be raised.
    Newer,
}

impl Generation {
    /// How a pointer's generation compares with `self`, the bucket's.
    #[must_use]
    pub fn age_of(self, pointer: Generation) -> Age {
        match self.0.wrapping_sub(pointer.0) {
            0 => Age::Current,
            behind @ 1..=128 => Age::Stale(behind),
            _ => Age::Newer,
        }
    }

    /// True if a pointer of this generation leads nowhere in a bucket of generation `self`.
    #[must_use]
    pub fn outdates(self, pointer: Generation) -> bool {
        matches!(self.age_of(pointer), Age::Stale(_))
    }

    /// The generation after this one.
    #[must_use]
    pub fn next(self) -> Generation {
        Generation(self.0.wrapping_add(1))
    }
}

#[cfg(test)]
mod tests {
    use super::{Age, Generation};

    #[test]
    fn ages_agree_with_counting_reuses() {
        for pointer in 0..=255_u8 {
            let mut bucket = Generation(pointer);
            assert_eq!(bucket.age_of(Generation(pointer)), Age::Current);
            for reuses in 1..=128 {
                bucket = bucket.next();
                assert_eq!(bucket.age_of(Generation(pointer)), Age::Stale(reuses));
                assert!(bucket.outdates(Generation(pointer)));
            }
            for _ in 129..=255 {
                bucket = bucket.next();
                assert_eq!(bucket.age_of(Generation(pointer)), Age::Newer);
            }
            assert_eq!(bucket.next(), Generation(pointer));
        }
    }
}

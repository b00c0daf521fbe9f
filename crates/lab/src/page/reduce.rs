//! Long lines in few points.
//!
//! A line with more than [`POINTS_MAX`] points is drawn by its envelope: the span of x is divided
//! into equal columns, and of each column the points with the least and the greatest y remain, in
//! their order. The first and the last point of the line remain too. The band of spread at the two
//! points of a column is the widest of the column. A column that is two pixels wide or less hides
//! nothing: every peak is still there.
//!
//! A point without a value ends a piece of the line. Pieces are kept apart, as long as that leaves
//! no more than [`POINTS_MAX`] points; the data files have all points in any case.

use super::chart::Point;

/// The most points with which a line is drawn.
pub const POINTS_MAX: usize = 600;
const COLUMNS: usize = (POINTS_MAX - 2) / 2;

/// The points to draw, for points in order of x.
pub fn reduce(points: &[Point]) -> Vec<Point> {
    if points.len() <= POINTS_MAX {
        return points.to_vec();
    }
    let (first, last) = (points[0], points[points.len() - 1]);
    let span = last.x - first.x;
    let column = |point: &Point| {
        if span > 0.0 {
            (((point.x - first.x) / span * COLUMNS as f64) as usize).min(COLUMNS - 1)
        } else {
            0
        }
    };
    let mut kept = vec![first];
    for column in points.chunk_by(|a, b| column(a) == column(b)) {
        kept.extend(envelope(column));
    }
    kept.push(last);
    kept.dedup_by(|b, a| (a.x, a.y) == (b.x, b.y));
    kept
}

/// The points with the least and the greatest value of a column, in their order; one if they are
/// the same, or if no point has a value.
fn envelope(column: &[Point]) -> Vec<Point> {
    let values = || column.iter().enumerate().filter(|(_, point)| point.y.is_finite());
    let least = values().min_by(|(_, a), (_, b)| a.y.total_cmp(&b.y));
    let greatest = values().max_by(|(_, a), (_, b)| a.y.total_cmp(&b.y));
    let (Some((least, _)), Some((greatest, _))) = (least, greatest) else {
        return column.first().copied().into_iter().collect();
    };
    let low = values().map(|(_, point)| point.low).fold(f64::INFINITY, f64::min);
    let high = values().map(|(_, point)| point.high).fold(f64::NEG_INFINITY, f64::max);
    let (from, to) = (least.min(greatest), least.max(greatest));
    let mut kept = vec![Point { low, high, ..column[from] }];
    if to > from {
        kept.push(Point { low, high, ..column[to] });
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::{POINTS_MAX, reduce};
    use crate::page::Point;

    #[test]
    fn line_of_few_points_stays_as_it_is() {
        let points: Vec<Point> = (0..600).map(|x| Point::new(f64::from(x), 1.0)).collect();
        assert_eq!(reduce(&points), points);
    }

    #[test]
    fn envelope_keeps_ends_peaks_and_the_widest_spread() {
        let mut points: Vec<Point> = (0..100_000)
            .map(|x| Point::new(f64::from(x), f64::from(x % 7)).with_spread(-1.0, 7.0))
            .collect();
        points[40_000].y = 1000.0;
        points[70_001].y = -1000.0;
        points[50_000].high = 2000.0;
        let kept = reduce(&points);
        assert!(kept.len() <= POINTS_MAX, "{}", kept.len());
        assert!(kept.len() > POINTS_MAX / 2, "{}", kept.len());
        assert!(kept.is_sorted_by(|a, b| a.x < b.x));
        assert_eq!((kept[0].x, kept[kept.len() - 1].x), (0.0, 99_999.0));
        for x in [40_000.0, 70_001.0] {
            assert!(kept.iter().any(|point| point.x == x), "{x}");
        }
        assert!(kept.iter().any(|point| point.high == 2000.0));
    }

    #[test]
    fn gap_longer_than_a_column_stays_a_gap() {
        let value = |x: i32| if (3000..5000).contains(&x) { f64::NAN } else { 1.0 };
        let points: Vec<Point> = (0..10_000).map(|x| Point::new(f64::from(x), value(x))).collect();
        let kept = reduce(&points);
        assert!(kept.len() <= POINTS_MAX);
        assert!(kept.iter().any(|point| point.y.is_nan()));
    }

    #[test]
    fn points_at_one_moment_are_reduced_too() {
        let points: Vec<Point> = (0..1000).map(|y| Point::new(5.0, f64::from(y))).collect();
        let ys: Vec<f64> = reduce(&points).iter().map(|point| point.y).collect();
        assert_eq!(ys, [0.0, 999.0]);
    }
}

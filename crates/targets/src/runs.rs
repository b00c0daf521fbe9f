//! [`runs`]: numbers that follow each other, joined: blocks and clusters that one request takes.

use std::ops::Range;

/// The runs of numbers that rise, each of at most so many.
pub(crate) fn runs(
    numbers: impl IntoIterator<Item = u64>,
    most: u64,
) -> impl Iterator<Item = Range<u64>> {
    let mut rest = numbers.into_iter().peekable();
    std::iter::from_fn(move || {
        let first = rest.next()?;
        let mut end = first + 1;
        while end - first < most && rest.next_if_eq(&end).is_some() {
            end += 1;
        }
        Some(first..end)
    })
}

#[cfg(test)]
mod tests {
    use super::runs;

    #[test]
    fn numbers_that_follow_each_other_are_one_run_as_long_as_it_may_be() {
        let all = |most| runs([1, 2, 3, 5, 7, 8], most).collect::<Vec<_>>();
        assert_eq!(all(u64::MAX), [1..4, 5..6, 7..9]);
        assert_eq!(all(2), [1..3, 3..4, 5..6, 7..9]);
    }
}

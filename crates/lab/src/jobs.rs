//! Runs beside each other. Each is one thread's own world, so what a run finds does not depend on
//! which others run beside it, and results have the order of the runs.

use std::num::NonZero;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use cairn_outcome::failure::Outcome;

/// Threads at most: the memory of a large experiment is gigabytes.
const THREADS_MAX: usize = 4;

/// As many threads as there are processors for this process.
pub fn threads() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX)
}

/// Runs `run` for each item, on so many threads, and answers the results in the order of the items.
/// After a failure no more are begun.
///
/// # Errors
/// Of the first item that failed, in the order of the items.
pub fn each<T: Sync, R: Send>(
    threads: usize,
    items: &[T],
    run: impl Fn(&T) -> Outcome<R> + Sync,
) -> Outcome<Vec<R>> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut ended = Vec::new();
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return ended };
            let result = run(item);
            if result.is_err() {
                next.store(items.len(), Ordering::Relaxed);
            }
            ended.push((at, result));
        }
    };
    let mut ended = thread::scope(|scope| {
        let others: Vec<_> = (1..threads.min(items.len())).map(|_| scope.spawn(work)).collect();
        let mut ended = work();
        for other in others {
            ended.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        ended
    });
    // Those before a failure were begun before it, and have ended.
    ended.sort_unstable_by_key(|(at, _)| *at);
    ended.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use cairn_outcome::failure::wrong;

    use super::*;

    #[test]
    fn results_have_the_order_of_the_items_with_any_number_of_threads() {
        let items: Vec<u64> = (0..40).collect();
        for threads in [1, 2, 7, 100] {
            let results = each(threads, &items, |item| Ok(item * item)).unwrap();
            assert!(results.iter().zip(&items).all(|(result, item)| *result == item * item));
            assert_eq!(results.len(), items.len());
        }
        assert!(each(4, &[], |item: &u64| Ok(*item)).unwrap().is_empty());
    }

    #[test]
    fn first_failure_in_the_order_of_the_items_is_told_and_nothing_begun_after_it() {
        let items: Vec<u64> = (0..1000).collect();
        for threads in [1, 2, 7] {
            let begun = AtomicUsize::new(0);
            let failed = each(threads, &items, |item| {
                begun.fetch_add(1, Ordering::Relaxed);
                match *item {
                    3.. => Err(wrong("", "item", item, "less than 3")),
                    item => Ok(item),
                }
            });
            assert!(failed.unwrap_err().to_string().contains("found 3"), "the first");
            assert!(begun.into_inner() < 1000);
        }
    }
}

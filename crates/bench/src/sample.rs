//! Rounds: every subject once per round, in turns, so that a disturbance of the machine hits all of
//! them.

use cairn_outcome::failure::Outcome;

/// Something to measure.
pub type Subject<'a, T> = Box<dyn FnMut() -> Outcome<T> + 'a>;

/// Measures every subject in turns: one round that does not count (it touches the memory), then
/// `runs`. Answers, for each subject, its measurements in order.
///
/// # Errors
/// A subject failed.
pub fn interleave<T>(runs: usize, mut subjects: Vec<Subject<'_, T>>) -> Outcome<Vec<Vec<T>>> {
    let mut all: Vec<Vec<T>> = subjects.iter().map(|_| Vec::with_capacity(runs)).collect();
    for round in 0..=runs {
        for (subject, taken) in subjects.iter_mut().zip(&mut all) {
            let value = subject()?;
            if round > 0 {
                taken.push(value);
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::{Subject, interleave};

    #[test]
    fn subjects_take_turns_and_the_first_round_does_not_count() {
        let calls = RefCell::new(String::new());
        let subject = |name: char| -> Subject<'_, usize> {
            let calls = &calls;
            Box::new(move || {
                calls.borrow_mut().push(name);
                Ok(calls.borrow().len())
            })
        };
        let taken = interleave(2, vec![subject('a'), subject('b')]).unwrap();
        assert_eq!(*calls.borrow(), "ababab");
        assert_eq!(taken, [[3, 5], [4, 6]]);
    }
}

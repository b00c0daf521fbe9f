//! Ways to stack three remapping layers, measured without any disk: the alternatives that the
//! request model was chosen from (`docs/decisions/0001-request-model.md`).
//!
//! Each layer adds its offset, counts the request, and counts it again if it failed, as the least
//! target does. Nothing here is used by the program.

use std::cell::Cell;
use std::future::Future;
use std::hint::black_box;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use cairn_outcome::failure::Outcome;

use super::clock::Moment;
use super::fixture::Fixture;
use super::row::{Report, Row, Samples};
use super::sample::{Subject, interleave};
use super::settings::Settings;

type Answer = Result<u64, u32>;
type Boxed<'a> = Pin<Box<dyn Future<Output = Answer> + 'a>>;

/// The bottom: answers at once.
struct End;

/// A layer above `L`.
struct Layer<L> {
    below: L,
    offset: u64,
    requests: Cell<u64>,
    failures: Cell<u64>,
}

impl<L> Layer<L> {
    fn over(below: L) -> Layer<L> {
        Layer { below, offset: 8, requests: Cell::new(0), failures: Cell::new(0) }
    }

    fn enter(&self, sector: u64) -> u64 {
        self.requests.set(self.requests.get() + 1);
        sector + self.offset
    }

    fn leave(&self, answer: Answer) -> Answer {
        self.failures.set(self.failures.get() + u64::from(answer.is_err()));
        answer
    }
}

/// A layer that answers when it is called.
trait Call {
    fn call(&self, sector: u64) -> Answer;
}

impl Call for End {
    fn call(&self, sector: u64) -> Answer {
        black_box(Ok(sector))
    }
}

impl<L: Call> Call for Layer<L> {
    fn call(&self, sector: u64) -> Answer {
        self.leave(self.below.call(self.enter(sector)))
    }
}

impl Call for Box<dyn Call> {
    fn call(&self, sector: u64) -> Answer {
        (**self).call(sector)
    }
}

/// A layer that answers with a future of its own.
trait Later {
    fn later(&self, sector: u64) -> Boxed<'_>;
}

impl Later for End {
    fn later(&self, sector: u64) -> Boxed<'_> {
        Box::pin(async move { black_box(Ok(sector)) })
    }
}

impl Later for Layer<Box<dyn Later>> {
    fn later(&self, sector: u64) -> Boxed<'_> {
        Box::pin(async move { self.leave(self.below.later(self.enter(sector)).await) })
    }
}

fn dynamic() -> Box<dyn Call> {
    let layer = |below: Box<dyn Call>| -> Box<dyn Call> { Box::new(Layer::over(below)) };
    layer(layer(layer(Box::new(End))))
}

fn boxed() -> Box<dyn Later> {
    let layer = |below: Box<dyn Later>| -> Box<dyn Later> { Box::new(Layer::over(below)) };
    layer(layer(layer(Box::new(End))))
}

fn ns_each(count: usize, mut one: impl FnMut(u64) -> Answer) -> f64 {
    let began = Moment::now();
    let failed = (0..count as u64).filter(|sector| one(black_box(*sector)).is_err()).count();
    black_box(failed);
    began.elapsed().ns_each(count)
}

/// A task per request, each run to its end by the reactor.
fn spawned(fixture: &Fixture, count: usize) -> f64 {
    fixture.on(move |env| async move {
        let done = std::rc::Rc::new(Cell::new(0usize));
        let began = Moment::now();
        for _ in 0..count {
            let done = done.clone();
            env.spawn(async move { done.set(done.get() + 1) });
        }
        while done.get() < count {
            cairn_block::yield_once().await;
        }
        began.elapsed().ns_each(count)
    })
}

/// Adds the rows.
///
/// # Errors
/// The reactor cannot start.
pub fn run(settings: &Settings, report: &mut Report) -> Outcome<()> {
    let count = settings.pick(1_000_000, 10_000);
    let fixture = Fixture::make()?;
    let inlined = Layer::over(Layer::over(Layer::over(End)));
    let (dynamic, boxed) = (dynamic(), boxed());
    let poll = |sector: u64| {
        let mut context = Context::from_waker(Waker::noop());
        match pin!(boxed.later(sector)).poll(&mut context) {
            Poll::Ready(answer) => answer,
            Poll::Pending => Err(0),
        }
    };
    let subjects: Vec<Subject<'_, f64>> = vec![
        Box::new(|| Ok(ns_each(count, |sector| inlined.call(sector)))),
        Box::new(|| Ok(ns_each(count, |sector| dynamic.call(sector)))),
        Box::new(|| Ok(ns_each(count, poll))),
        Box::new(|| Ok(spawned(&fixture, count / 10))),
    ];
    let names = ["inlined", "dynamic_calls", "boxed_futures", "task_per_request"];
    for (name, values) in names.into_iter().zip(interleave(settings.runs, subjects)?) {
        let row = Row::new("layers", Samples(values), "ns/request");
        report.push(row.with("style", name).with("layers", 3));
    }
    Ok(())
}

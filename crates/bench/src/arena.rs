//! [`Arena`]: plain memory, for the cost of copying the same buffers without a disk.

use std::sync::{Arc, Barrier};

use cairn_block::{BUF_ALIGN, Env, Op, SECTOR_BYTES};
use parking_lot::Mutex;

use super::clock::{Moment, Took};
use super::fixture::Fixture;
use super::load::Job;

/// Memory of the size and alignment of a disk.
#[derive(Clone)]
pub struct Arena {
    memory: Arc<Mutex<Vec<u8>>>,
    /// Where the aligned part begins.
    begin: usize,
}

impl Arena {
    /// Memory that was written once: untouched pages all share one page of zeros.
    pub fn new(bytes: u64) -> Arena {
        let memory = vec![1; bytes as usize + BUF_ALIGN];
        let begin = memory.as_ptr().align_offset(BUF_ALIGN);
        Arena { memory: Arc::new(Mutex::new(memory)), begin }
    }

    /// Copies the bytes that the job would move, with the same kind of buffers and places.
    pub fn copy(&self, fixture: &Fixture, job: &Job) -> Took {
        let (arena, job) = (self.clone(), job.clone());
        fixture.on(move |env| async move { arena.copy_here(&env, &job, &Barrier::new(1)) })
    }

    fn copy_here(&self, env: &Env, job: &Job, start: &Barrier) -> Took {
        let mut buffers = job.buffers(env);
        let mut arena = self.memory.lock();
        start.wait();
        let began = Moment::now();
        for place in job.places.iter() {
            let segs = buffers.pop_front().expect("a job has buffers");
            let mut at = self.begin + (place * SECTOR_BYTES) as usize;
            if job.op == Op::Read {
                segs.for_each_mut(0, job.bytes, |bytes| {
                    bytes.copy_from_slice(&arena[at..at + bytes.len()]);
                    at += bytes.len();
                });
            } else {
                segs.for_each(0, job.bytes, |bytes| {
                    arena[at..at + bytes.len()].copy_from_slice(bytes);
                    at += bytes.len();
                });
            }
            buffers.push_back(segs);
        }
        began.elapsed()
    }
}

impl Arena {
    /// Copies the places of a job from this arena to another, with no buffer between: what moving
    /// cold memory costs at least.
    pub fn copy_across(&self, fixture: &Fixture, to: &Arena, job: &Job) -> Took {
        copy_across_each(fixture, &[[self.clone(), to.clone()]], job).remove(0)
    }

    fn copy_across_here(&self, to: &Arena, job: &Job, start: &Barrier) -> Took {
        let (source, mut target) = (self.memory.lock(), to.memory.lock());
        start.wait();
        let began = Moment::now();
        for place in job.places.iter() {
            let at = (place * SECTOR_BYTES) as usize;
            let (source_at, target_at) = (self.begin + at, to.begin + at);
            target[target_at..target_at + job.bytes]
                .copy_from_slice(&source[source_at..source_at + job.bytes]);
        }
        began.elapsed()
    }

    fn fill_here(&self, job: &Job, start: &Barrier) -> Took {
        let mut memory = self.memory.lock();
        start.wait();
        let began = Moment::now();
        for place in job.places.iter() {
            let at = self.begin + (place * SECTOR_BYTES) as usize;
            memory[at..at + job.bytes].fill(0);
        }
        began.elapsed()
    }
}

/// Copies on each reactor of the fixture at once, each in an arena of its own.
pub fn copy_each(fixture: &Fixture, arenas: &[Arena], jobs: &[Job]) -> Vec<Took> {
    let (arenas, jobs) = (arenas.to_vec(), jobs.to_vec());
    at_once(fixture, jobs.len(), move |index, env, start| {
        arenas[index].copy_here(env, &jobs[index], start)
    })
}

/// Copies the places of a job on as many reactors at once as there are pairs, from the first arena
/// of each to the second.
pub fn copy_across_each(fixture: &Fixture, pairs: &[[Arena; 2]], job: &Job) -> Vec<Took> {
    let (pairs, job) = (pairs.to_vec(), job.clone());
    at_once(fixture, pairs.len(), move |index, _env, start| {
        let [from, to] = &pairs[index];
        from.copy_across_here(to, &job, start)
    })
}

/// Fills the places of a job with zeros, on as many reactors at once as there are arenas.
pub fn fill_each(fixture: &Fixture, arenas: &[Arena], job: &Job) -> Vec<Took> {
    let (arenas, job) = (arenas.to_vec(), job.clone());
    at_once(fixture, arenas.len(), move |index, _env, start| arenas[index].fill_here(&job, start))
}

/// Runs a closure on each of the `count` reactors of the fixture.
fn at_once(
    fixture: &Fixture,
    count: usize,
    work: impl Fn(usize, &Env, &Barrier) -> Took + Send + Sync + 'static,
) -> Vec<Took> {
    let parts = Arc::new((work, Barrier::new(count)));
    fixture.on_each(move |index, env| {
        let parts = parts.clone();
        async move {
            let (work, start) = &*parts;
            work(usize::from(index), &env, start)
        }
    })
}

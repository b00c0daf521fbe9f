//! [`Arena`]: plain memory, to say what copying the same buffers costs without any disk.

use std::sync::{Arc, Barrier};

use cairn_block::{BUF_ALIGN, Env, Op, SECTOR_BYTES};
use parking_lot::Mutex;

use super::bed::Bed;
use super::clock::{Moment, Took};
use super::load::Job;

/// As much memory as a disk would have, aligned as a disk's.
#[derive(Clone)]
pub struct Arena {
    memory: Arc<Mutex<Vec<u8>>>,
    /// Where the aligned part begins.
    begin: usize,
}

impl Arena {
    /// Memory that has been written: pages that never were are all one page of zeros.
    pub fn new(bytes: u64) -> Arena {
        let memory = vec![1; bytes as usize + BUF_ALIGN];
        let begin = memory.as_ptr().align_offset(BUF_ALIGN);
        Arena { memory: Arc::new(Mutex::new(memory)), begin }
    }

    /// Copies what the job would move, between the same kind of buffers and the same places.
    pub fn copy(&self, bed: &Bed, job: &Job) -> Took {
        let (arena, job) = (self.clone(), job.clone());
        bed.on(move |env| async move { arena.copy_here(&env, &job, &Barrier::new(1)) })
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
    /// Fills the places of a job with zeros.
    pub fn fill(&self, bed: &Bed, job: &Job) -> Took {
        let (arena, job) = (self.clone(), job.clone());
        bed.on(move |_env| async move {
            let mut memory = arena.memory.lock();
            let began = Moment::now();
            for place in job.places.iter() {
                let at = arena.begin + (place * SECTOR_BYTES) as usize;
                memory[at..at + job.bytes].fill(0);
            }
            began.elapsed()
        })
    }

    /// Copies the places of a job from this arena to another, with no buffer between: what moving
    /// cold memory costs at least.
    pub fn copy_across(&self, bed: &Bed, to: &Arena, job: &Job) -> Took {
        let (from, to, job) = (self.clone(), to.clone(), job.clone());
        bed.on(move |_env| async move {
            let (source, mut target) = (from.memory.lock(), to.memory.lock());
            let began = Moment::now();
            for place in job.places.iter() {
                let at = (place * SECTOR_BYTES) as usize;
                let (source_at, target_at) = (from.begin + at, to.begin + at);
                target[target_at..target_at + job.bytes]
                    .copy_from_slice(&source[source_at..source_at + job.bytes]);
            }
            began.elapsed()
        })
    }
}

/// Copies on each reactor of the bed at once, each in an arena of its own.
pub fn copy_each(bed: &Bed, arenas: &[Arena], jobs: &[Job]) -> Vec<Took> {
    let start = Barrier::new(jobs.len());
    let (arenas, jobs) = (arenas.to_vec(), jobs.to_vec());
    let parts = Arc::new((arenas, jobs, start));
    bed.on_each(move |index, env| {
        let (parts, index) = (parts.clone(), usize::from(index));
        async move {
            let (arenas, jobs, start) = &*parts;
            arenas[index].copy_here(&env, &jobs[index], start)
        }
    })
}

//! [`Arena`]: plain memory, to say what copying the same buffers costs without any disk.

use std::sync::Arc;

use cairn_block::{BUF_ALIGN, Op, SECTOR_BYTES};
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
        let (arena, begin, job) = (self.memory.clone(), self.begin, job.clone());
        bed.on(move |env| async move {
            let mut buffers = job.buffers(&env);
            let mut arena = arena.lock();
            let began = Moment::now();
            for place in job.places.iter() {
                let segs = buffers.pop_front().expect("a job has buffers");
                let mut at = begin + (place * SECTOR_BYTES) as usize;
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
        })
    }
}

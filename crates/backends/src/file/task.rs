//! [`Task`]: a request on a file that takes several steps, on the request's reactor.
//!
//! A transfer whose memory direct I/O refuses is copied through an aligned buffer, in pieces of at
//! most [`PIECE_BYTES`]: that limits the memory of one request.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use cairn_block::{Env, Flags, IoError, IoResult, Op, Request, SectorCount, SectorRange, Segs};
use cairn_reactor::Driver;
use rustix::io::Errno;

use super::OpenFile;

/// The longest piece of a bounced transfer.
const PIECE_BYTES: usize = 1 << 20;

const INTERRUPTED: i32 = -libc::EINTR;
const AGAIN: i32 = -libc::EAGAIN;

/// What a task works with: the file, and the driver and environment of its reactor.
pub(super) struct Task {
    pub file: Arc<OpenFile>,
    pub driver: Rc<Driver>,
    env: Env,
    /// The last error of the system; 0 if there was none.
    errno: Cell<i32>,
}

/// The request's fields; the request itself stays parked.
struct Work {
    op: Op,
    flags: Flags,
    range: SectorRange,
    segs: Segs,
}

impl Task {
    /// Starts the task of `request`. The task completes the request.
    pub fn start(env: &Env, file: Arc<OpenFile>, request: &Request) {
        let bytes = if request.op.has_data() { request.range.to_bytes() as usize } else { 0 };
        let segs = request.segs.slice(0, bytes);
        let work = Work { op: request.op, flags: request.flags, range: request.range, segs };
        let (id, driver) = (request.id(), Driver::of(env).clone());
        let task = Task { file, driver, env: env.clone(), errno: Cell::new(0) };
        env.spawn(async move {
            let (op, sector) = (work.op, work.range.start);
            let result = task.perform(work).await;
            if let Err(error) = result {
                let said = match task.errno.get() {
                    0 => error.to_string(),
                    errno => io::Error::from_raw_os_error(errno).to_string(),
                };
                task.file.log_failure(&task.env, op, sector, error.kind, &said);
            }
            task.env.complete(id, result);
        });
    }

    async fn perform(&self, work: Work) -> IoResult {
        let (fua, failures) = (work.flags.contains(Flags::FUA), self.file.gate.failures().count());
        match work.op {
            Op::Read if self.file.end.is_some() => {
                self.read_all(work.segs, work.range.start.to_bytes()).await
            }
            Op::Read => self.read_bounced(&work.segs, work.range.start.to_bytes()).await,
            Op::Write => self.write(work).await,
            Op::Flush => self.sync().await,
            Op::Discard => self.discard(work.range).await,
            Op::WriteZeroes => self.write_zeroes(work.range, work.flags).await,
        }?;
        // Another user's flush may have failed between the write and its flush, and dropped the
        // write.
        let dropped = fua && self.file.gate.failures().count() != failures;
        if dropped { Err(IoError::IO) } else { Ok(()) }
    }

    async fn write(&self, work: Work) -> IoResult {
        let (fua, offset) = (work.flags.contains(Flags::FUA), work.range.start.to_bytes());
        match self.file.direct {
            Some(_) if fua => {
                let write = |dsync| self.write_direct(&work.segs, offset, dsync);
                self.file.gate.durable_write(write).await
            }
            Some(_) => self.write_direct(&work.segs, offset, false).await,
            None => {
                self.write_all(work.segs, offset, false).await?;
                if fua { self.sync().await } else { Ok(()) }
            }
        }
    }

    async fn write_direct(&self, data: &Segs, offset: u64, dsync: bool) -> IoResult {
        match self.file.direct {
            Some(direct) if !direct.takes(data.iovecs()) => {
                self.write_bounced(data, offset, dsync).await
            }
            _ => self.write_all(data.clone(), offset, dsync).await,
        }
    }

    async fn read_bounced(&self, out: &Segs, offset: u64) -> IoResult {
        let bounce = self.buffer(out.bytes());
        let mut done = 0;
        while done < out.bytes() {
            let len = bounce.bytes().min(out.bytes() - done);
            self.read_all(bounce.slice(0, len), offset + done as u64).await?;
            bounce.for_each(0, len, |bytes| {
                out.copy_in(done, bytes);
                done += bytes.len();
            });
        }
        Ok(())
    }

    async fn write_bounced(&self, data: &Segs, offset: u64, dsync: bool) -> IoResult {
        let bounce = self.buffer(data.bytes());
        let mut done = 0;
        while done < data.bytes() {
            let (len, at) = (bounce.bytes().min(data.bytes() - done), offset + done as u64);
            bounce.for_each_mut(0, len, |bytes| {
                data.copy_out(done, bytes);
                done += bytes.len();
            });
            self.write_all(bounce.slice(0, len), at, dsync).await?;
        }
        Ok(())
    }

    /// Writes zeros.
    pub async fn write_zeros(&self, bytes: std::ops::Range<u64>) -> IoResult {
        let len = usize::try_from(bytes.end - bytes.start).unwrap_or(usize::MAX);
        let zeros = self.buffer(len);
        zeros.zero(0, zeros.bytes());
        let mut at = bytes.start;
        while at < bytes.end {
            let len = zeros.bytes().min(usize::try_from(bytes.end - at).unwrap_or(usize::MAX));
            self.write_all(zeros.slice(0, len), at, false).await?;
            at += len as u64;
        }
        Ok(())
    }

    /// An aligned buffer of `bytes`, at most one piece.
    fn buffer(&self, bytes: usize) -> Segs {
        self.env.segs(SectorCount::of_bytes(bytes.min(PIECE_BYTES) as u64))
    }

    async fn read_all(&self, mut segs: Segs, mut offset: u64) -> IoResult {
        while segs.bytes() > 0 {
            let moved = self.driver.read_at(&self.file.fd, segs.clone(), offset).await;
            if moved == 0 && self.file.end.is_some_and(|end| offset >= end) {
                segs.zero(0, segs.bytes());
                break;
            }
            let moved = self.progress(moved)?;
            segs = segs.slice(moved, segs.bytes() - moved);
            offset += moved as u64;
        }
        Ok(())
    }

    async fn write_all(&self, mut segs: Segs, mut offset: u64, dsync: bool) -> IoResult {
        while segs.bytes() > 0 {
            let moved = self.driver.write_at(&self.file.fd, segs.clone(), offset, dsync).await;
            let moved = self.progress(moved)?;
            segs = segs.slice(moved, segs.bytes() - moved);
            offset += moved as u64;
        }
        Ok(())
    }

    /// Makes every completed write durable.
    pub async fn sync(&self) -> IoResult {
        self.file.gate.flush(|| self.fdatasync()).await
    }

    async fn fdatasync(&self) -> IoResult {
        loop {
            match self.driver.fdatasync(&self.file.fd).await {
                0.. => return Ok(()),
                INTERRUPTED | AGAIN => {}
                error => return Err(self.refused(error)),
            }
        }
    }

    /// Runs `work` on a helper thread.
    pub async fn blocking(
        &self,
        work: impl FnOnce(&OpenFile) -> Result<(), Errno> + Send + 'static,
    ) -> IoResult {
        let file = self.file.clone();
        let run = self.driver.run(move || match work(&file) {
            Ok(()) => 0,
            Err(error) => -error.raw_os_error(),
        });
        match run.await {
            0.. => Ok(()),
            error => Err(self.refused(error)),
        }
    }

    /// The error for `errno`, which is kept for the log.
    pub fn refused(&self, errno: i32) -> IoError {
        self.errno.set(errno.abs());
        IoError::from_errno(errno)
    }

    /// The bytes that a transfer moved. Zero bytes are an error; an interruption is not.
    fn progress(&self, result: i32) -> Result<usize, IoError> {
        match result {
            INTERRUPTED | AGAIN => Ok(0),
            0 => Err(IoError::IO),
            error @ ..0 => Err(self.refused(error)),
            moved => Ok(moved as usize),
        }
    }
}

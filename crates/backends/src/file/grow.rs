//! Growth of a file. A block device has its size.
//!
//! The system call may wait for the file system, so a helper thread makes it. The file is sparse
//! behind its old end. An fdatasync that follows makes the size durable, too: the system has to
//! write what is needed to find the data.

use std::io;
use std::sync::Arc;

use cairn_block::{Env, IoError, SectorCount};
use cairn_reactor::Driver;
use rustix::fs::{fstat, ftruncate};

use super::OpenFile;
use super::probe::Kind;

/// Makes it at least so long. Answers how long it is.
pub(super) async fn grow(
    env: &Env,
    file: &Arc<OpenFile>,
    sectors: SectorCount,
) -> Result<SectorCount, IoError> {
    if file.kind == Kind::File && !file.limits.read_only {
        let (fd, bytes) = (file.fd.clone(), sectors.to_bytes());
        let work = move || match fstat(&fd) {
            Ok(stat) if stat.st_size as u64 >= bytes => 0,
            Ok(_) => ftruncate(&fd, bytes).map_or_else(|error| -error.raw_os_error(), |()| 0),
            Err(error) => -error.raw_os_error(),
        };
        let result = Driver::of(env).run(work).await;
        if result < 0 {
            let (path, error) = (&file.path, io::Error::from_raw_os_error(-result));
            let key = format!("{path}: grow failed");
            env.warn(&key, || format!("{key}: to {bytes} bytes: {error}"));
            return Err(IoError::from_errno(-result));
        }
        file.refresh().map_err(|_| IoError::IO)?;
    }
    Ok(SectorCount(file.sectors.load(std::sync::atomic::Ordering::Relaxed)))
}

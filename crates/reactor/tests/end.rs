//! A reactor that ends with a transfer in flight: the transfer's memory outlives the operation.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use cairn_block::{
    Client, Disk, Env, Flow, Io, IoResult, ReactorId, Request, Sector, SectorCount, SectorRange,
};
use cairn_reactor::{Direction, Driver, Options, Reactors, RingKind};

/// Reads come from a socket into which nothing is ever written.
struct Silent(Arc<OwnedFd>);

impl Disk for Silent {
    fn name(&self) -> String {
        "silent".to_owned()
    }

    fn sectors(&self) -> SectorCount {
        SectorCount(1 << 20)
    }

    fn submit(&self, env: &Env, request: &mut Request) -> Flow {
        Driver::of(env).transfer(&self.0, request, Direction::Read, 0);
        Flow::Queued
    }
}

/// When it is dropped, with its request, records how many references the descriptor has.
struct Watched {
    file: Arc<OwnedFd>,
    holders: Arc<AtomicUsize>,
}

impl Client for Watched {
    fn complete(&self, _env: &Env, _cookie: u64, _request: &mut Request, _result: IoResult) {}
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.holders.store(Arc::strong_count(&self.file), Ordering::SeqCst);
    }
}

#[test]
fn requests_live_until_their_operations_end() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let file = Arc::new(OwnedFd::from(File::from(OwnedFd::from(ours))));
    let holders = Arc::new(AtomicUsize::new(0));
    let reactors = Reactors::start(Options { count: 1, ring: RingKind::Auto }).unwrap();
    let (disk_file, seen) = (file.clone(), holders.clone());
    reactors.block_on(ReactorId(0), move |env| async move {
        let disk: Arc<dyn Disk> = Arc::new(Silent(disk_file.clone()));
        let count = SectorCount(8);
        let client = Rc::new(Watched { file: disk_file, holders: seen });
        let io = Io::read(SectorRange::new(Sector(0), count), env.segs(count));
        env.start(&disk, io, client, 0);
    });
    drop(reactors);
    // Two are left, the test's and the client's: the operation had ended before the request was
    // freed.
    assert_eq!(holders.load(Ordering::SeqCst), 2, "the operation was still in flight");
    drop(theirs);
}

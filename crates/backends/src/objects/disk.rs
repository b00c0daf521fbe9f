//! [`ObjectDisk`]: an object of a web server or an object store as a read-only disk.

use std::sync::Arc;
use std::sync::OnceLock;
use std::time::Duration;

use cairn_block::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use cairn_block::{
    ConfigError, ConfigKind, Disk, Env, Flow, IoError, Limits, Nature, Op, Request, SECTOR_BYTES,
    SectorCount, Shape,
};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

use super::fetch::Object;
use super::uri::Address;
use super::worker::{Read, Shared, block_on, serve};
use crate::remote::{RemoteCounts, RemoteDisk, RemoteFigures, RemoteKind, value};

/// How long an open may take, until all that it reads is there.
const OPEN_PATIENCE: Duration = Duration::from_secs(30);

/// See the module's description.
pub struct ObjectDisk {
    shared: Arc<Shared>,
    inbox: UnboundedSender<Read>,
}

impl ObjectDisk {
    /// Asks the server for an object. Blocks the thread.
    ///
    /// # Errors
    /// It is no URI of an object, there is none, its server refuses it, or a change of it would not
    /// be noticed.
    pub fn open(argument: &str) -> Result<ObjectDisk, ConfigError> {
        ObjectDisk::of(Address::parse(argument)?)
    }

    fn of(address: Address) -> Result<ObjectDisk, ConfigError> {
        let argument = address.argument.clone();
        let failed = |error: std::io::Error| {
            let detail = format!("open: a helper thread: {error}");
            ConfigError::new(ConfigKind::System, &argument, detail)
        };
        let (object, first) = block_on(Object::open(address, OPEN_PATIENCE)).map_err(failed)??;
        let is_changed = AtomicBool::new(false);
        let shared = Arc::new(Shared {
            object,
            is_changed,
            counts: RemoteCounts::default(),
            fetched_bytes: AtomicU64::new(first.len() as u64),
            post: OnceLock::new(),
        });
        let (inbox, reads) = unbounded_channel();
        serve(shared.clone(), reads, first).map_err(failed)?;
        Ok(ObjectDisk { shared, inbox })
    }
}

impl RemoteDisk for ObjectDisk {
    fn kind(&self) -> RemoteKind {
        RemoteKind::Object
    }

    fn figures(&self) -> RemoteFigures {
        let Shared { object, counts, fetched_bytes, .. } = &*self.shared;
        RemoteFigures {
            uri: object.address.argument.clone(),
            shown: object.address.shown(),
            kind: RemoteKind::Object,
            state: counts.state(),
            is_silent: false,
            size: self.sectors(),
            connections: None,
            reconnects: None,
            retries: Some(value(&counts.retries)),
            replay: None,
            fetched_bytes: Some(value(fetched_bytes)),
            losses: 0,
            traffic: counts.traffic(),
        }
    }
}

impl Disk for ObjectDisk {
    fn name(&self) -> String {
        self.shared.object.address.argument.clone()
    }

    /// A last sector that is not whole ends in zeroes.
    fn sectors(&self) -> SectorCount {
        SectorCount(self.shared.object.bytes.div_ceil(SECTOR_BYTES))
    }

    fn submit(&self, env: &Env, request: &mut Request) -> Flow {
        match request.op {
            Op::Flush => return Flow::Done,
            Op::Read => {}
            _ => return Flow::Failed(IoError::READ_ONLY),
        }
        self.shared.post.get_or_init(|| {
            self.shared.counts.prepare(env.post().reactors());
            env.post().clone()
        });
        let at = env.now();
        if self.shared.is_changed.load(Ordering::Acquire) {
            self.shared.count(env, request.range.count, at, false);
            return Flow::Failed(IoError::IO);
        }
        let start = request.range.start.to_bytes();
        let range = start..start + request.range.to_bytes();
        match self.inbox.send(Read { id: request.id(), range, at }) {
            Ok(()) => Flow::Queued,
            // The helper thread has ended.
            Err(_) => Flow::Failed(IoError::IO),
        }
    }

    fn limits(&self) -> Limits {
        Limits { discard: false, fast_zero: false, read_only: true, ..Limits::default() }
    }

    fn nature(&self) -> Nature {
        Nature { rotational: None, volatile: false, shape: Shape::Unknown }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;
    use crate::tests::web::{Manners, Web};
    use crate::tests::{self, range, worlds};

    #[test]
    fn a_panic_in_the_task_of_a_disk_fails_its_reads() {
        let web = Web::serve(1 << 20);
        let mut address = Address::parse(&web.uri("")).unwrap();
        // No point in time is so late: adding it panics.
        address.reconnect = Duration::MAX;
        let disk: Arc<dyn Disk> = Arc::new(ObjectDisk::of(address).unwrap());
        let (told, answers) = mpsc::channel();
        thread::spawn(move || {
            let [on, _] = worlds();
            for _ in 0..2 {
                let found = tests::read(&on, &disk, range(1024, 8), tests::Shape::default());
                told.send(found).unwrap();
            }
        });
        for _ in 0..2 {
            let answer = answers.recv_timeout(Duration::from_secs(20));
            assert_eq!(answer.expect("an answer"), Err(IoError::IO));
        }
    }

    #[test]
    fn an_open_of_an_object_has_a_limit_of_time() {
        let web = Web::serve(1 << 20);
        web.behave(Manners::Slow(Duration::from_millis(500)));
        let address = Address::parse(&web.uri("")).unwrap();
        let opened = block_on(Object::open(address, Duration::from_secs(1))).unwrap();
        let line = opened.err().expect("64 KiB take longer").to_string();
        assert!(line.ends_with("open: it took longer than 1 s"), "{line}");
    }
}

//! Failure counts of disks that outlive the process.

use std::sync::Arc;

use cairn_block::sync::Mutex;
use cairn_block::{
    ConfigError, Disk, Env, FailureCount, Flow, Identity, KeptLogs, Opener, Registry, Request,
    SectorCount,
};

struct Drive(Arc<FailureCount>);

impl Disk for Drive {
    fn name(&self) -> String {
        "drive".to_owned()
    }

    fn sectors(&self) -> SectorCount {
        SectorCount(8)
    }

    fn submit(&self, _env: &Env, _request: &mut Request) -> Flow {
        Flow::Done
    }

    fn failures(&self) -> u64 {
        self.0.count()
    }

    fn failures_told(&self) -> u64 {
        self.0.told()
    }
}

/// One drive, with the sequence number that it has now.
struct Slot(Arc<Mutex<u64>>);

impl Opener for Slot {
    fn identify(&self, _argument: &str) -> Result<Identity, ConfigError> {
        Ok(Identity::Block { number: 1, sequence: *self.0.lock() })
    }

    fn open(
        &self,
        _argument: &str,
        _read_only: bool,
        failures: Arc<FailureCount>,
    ) -> Result<Arc<dyn Disk>, ConfigError> {
        Ok(Arc::new(Drive(failures)))
    }
}

fn process(logs: &KeptLogs, sequence: u64) -> (Registry, Arc<Mutex<u64>>) {
    let sequence = Arc::new(Mutex::new(sequence));
    let registry = Registry::new(Box::new(Slot(sequence.clone())));
    registry.set_crash_logs(Arc::new(logs.after_kill()));
    (registry, sequence)
}

/// What is left of a drive that has failed once, under a writer that told nobody.
fn failed_once() -> KeptLogs {
    let logs = Arc::new(KeptLogs::new(1));
    let registry = Registry::new(Box::new(Slot(Arc::new(Mutex::new(7)))));
    registry.set_crash_logs(logs.clone());
    let disk = registry.open("drive", false).unwrap();
    let identity = registry.identity_of(&disk).unwrap();
    registry.failure_count(&identity).raise();
    assert_eq!(disk.failures(), 1);
    logs.after_kill()
}

#[test]
fn reader_begins_with_the_count_that_a_writer_left() {
    let (registry, _) = process(&failed_once(), 7);
    let disk = registry.open("drive", true).unwrap();
    assert_eq!([disk.failures(), disk.failures_told()], [1, 0]);
}

#[test]
fn writer_after_a_reader_counts_on_where_the_next_process_finds_it() {
    let logs = Arc::new(failed_once().after_kill());
    let registry = Registry::new(Box::new(Slot(Arc::new(Mutex::new(7)))));
    registry.set_crash_logs(logs.clone());
    drop(registry.open("drive", true).unwrap());
    let disk = registry.open("drive", false).unwrap();
    registry.failure_count(&registry.identity_of(&disk).unwrap()).raise();
    assert_eq!(disk.failures(), 2);
    let (registry, _) = process(&logs, 7);
    assert_eq!(registry.open("drive", true).unwrap().failures(), 2);
}

#[test]
fn block_device_that_was_attached_again_is_another_one() {
    let (registry, sequence) = process(&failed_once(), 8);
    assert_eq!(registry.open("drive", false).unwrap().failures(), 0);
    *sequence.lock() = 7;
    assert_eq!(registry.open("drive", false).unwrap().failures(), 1);
}

//! The contract between layers: breaches are refused, counted, and reach nobody below.

use std::sync::Arc;

use cairn_block::{Disk, Env, Flags, Io, IoError, Op, SectorCount, SuspendMode};
use cairn_sim::{DriveOptions, Image, SimWorld};

use crate::probe::{Bench, range};

#[test]
fn requests_that_break_the_contract_are_refused_and_counted() {
    let bench = Bench::new(1);
    let volume = bench.volume("v", "0 64 probe a 0");
    let data = |env: &Env, count| env.segs(SectorCount(count));
    let breaches: [&dyn Fn(&Env) -> Io; 7] = [
        &|env| Io::read(range(0, 0), data(env, 1)),
        &|env| Io::read(range(60, 8), data(env, 8)),
        &|env| Io::read(range(u64::MAX, 2), data(env, 2)),
        &|env| Io::write(range(0, 8), data(env, 7)),
        &|env| Io::read(range(0, 8), data(env, 8)).with(Flags::FUA),
        &|_| Io::flush().with(Flags::FUA),
        &|_| Io::on(Op::Discard, range(0, 8)).with(Flags::NO_UNMAP),
    ];
    for (number, breach) in breaches.iter().enumerate() {
        assert_eq!(bench.io(&volume, breach), Err(IoError::INVALID), "breach {number}");
        assert_eq!(bench.world.contract_violations(), number as u64 + 1);
    }
    assert_eq!(bench.take_seen(), [], "no target saw any of it");
    assert_eq!(bench.world.requests_in_use(), 0);
}

#[test]
fn a_target_that_sends_a_request_beyond_its_disk_is_stopped() {
    let bench = Bench::new(2);
    let volume = bench.volume("v", "0 64 probe a 1000");
    bench.write(&volume, range(0, 8), 1).unwrap();
    assert_eq!(bench.write(&volume, range(20, 8), 1), Err(IoError::INVALID));
    assert_eq!(bench.world.contract_violations(), 1);
}

#[test]
fn requests_are_multiples_of_the_logical_block() {
    let world = SimWorld::new(3, 1);
    let options = DriveOptions { logical_block: 4096, ..DriveOptions::named("a") };
    let disk: Arc<dyn Disk> = world.add_drive(options, Image::new(SectorCount(64)));
    let read = |start, count| {
        let disk = disk.clone();
        world.block_on(0, move |env| async move {
            env.io(&disk, Io::read(range(start, count), env.segs(SectorCount(count)))).await
        })
    };
    assert_eq!(read(8, 16), Ok(()));
    assert_eq!(read(8, 4), Err(IoError::INVALID));
    assert_eq!(read(4, 8), Err(IoError::INVALID));
    assert_eq!(world.contract_violations(), 2);
}

#[test]
fn a_second_completion_finds_no_request() {
    let bench = Bench::new(4);
    let volume = bench.volume("v", "0 64 probe a 0 hoard=1");
    let disk: Arc<dyn Disk> = volume.clone();
    let flush = bench.world.env(0).io(&disk, Io::flush());
    // The hoard's id is known to nobody here: complete through a twin that was told.
    let twin = bench.world.env(0).clone();
    let told = Arc::new(Told::default());
    let told_disk: Arc<dyn Disk> = told.clone();
    let io = twin.io(&told_disk, Io::flush());
    let id = told.0.lock().expect("it was submitted");
    bench.world.block_on(1, move |env| async move {
        env.complete(id, Ok(()));
        env.complete(id, Err(IoError::IO));
    });
    let result = bench.world.block_on(0, |_| io);
    assert!(result.is_ok());
    bench.world.run_for(std::time::Duration::from_secs(1));
    assert_eq!(bench.world.contract_violations(), 1, "the second was refused");
    bench.suspend(&volume, SuspendMode::Flush);
    bench.world.block_on(0, |_| flush).unwrap();
}

/// A disk that keeps every request and remembers the latest.
#[derive(Default)]
struct Told(cairn_block::sync::Mutex<Option<cairn_block::RequestId>>);

impl Disk for Told {
    fn name(&self) -> String {
        "told".to_owned()
    }

    fn sectors(&self) -> SectorCount {
        SectorCount(8)
    }

    fn submit(&self, _env: &Env, request: &mut cairn_block::Request) -> cairn_block::Flow {
        *self.0.lock() = Some(request.id());
        cairn_block::Flow::Queued
    }
}

#[test]
fn a_table_that_leads_back_to_itself_is_refused() {
    let bench = Bench::new(5);
    let low = bench.volume("low", "0 64 probe a 0");
    bench.volume("top", "0 64 probe @low 0");
    let error = bench.load(&low, "0 64 probe @top 0").unwrap_err().to_string();
    assert!(error.contains("a loop through '@low'"), "{error}");
}

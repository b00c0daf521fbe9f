//! Lost writes: which clients learn of them, when, and how often.

use std::sync::Arc;

use cairn_exports::nbd::NbdExport;
use cairn_exports::nbd::wire::command;

use crate::disk::TestDisk;
use crate::world::{World, eventually, on_both_rings};
use cairn_testkit::nbd::{Client, Wishes};

const EIO: u32 = 5;

fn open(world: &World, name: &str) -> Client {
    Client::open(&world.socket(), name, Wishes::default())
}

fn flush(client: &mut Client) -> u32 {
    client.run(command::FLUSH, 0, 0, 0)
}

#[test]
fn each_connection_gets_one_loss_report_whichever_flush_failed() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::new(1 << 20);
        world.export("volume", &disk);
        let mut clients = [open(&world, "volume"), open(&world, "volume"), open(&world, "volume")];
        assert!(clients.iter_mut().all(|client| flush(client) == 0));
        disk.shared.failures.raise();
        for client in &mut clients {
            assert_eq!(client.write(0, 0, &[1; 512]), 0, "losses are told at flushes");
            assert_eq!((flush(client), flush(client)), (EIO, 0));
        }
        assert_eq!(flush(&mut open(&world, "volume")), 0, "it wrote nothing before");
    });
}

#[test]
fn reconnecting_client_learns_of_an_unreported_loss() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::new(1 << 20);
        world.export("volume", &disk);
        let mut client = open(&world, "volume");
        assert_eq!(client.write(0, 0, &[1; 512]), 0);
        drop(client);
        disk.shared.failures.raise();
        let mut again = open(&world, "volume");
        assert_eq!((flush(&mut again), flush(&mut again)), (EIO, 0));
    });
}

#[test]
fn client_that_vanished_before_the_loss_report_gets_it_when_it_reconnects() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::new(1 << 20);
        world.export("volume", &disk);
        let mut client = open(&world, "volume");
        assert_eq!(client.write(0, 512, &[1; 512]), 0);
        disk.hold(0);
        client.send(command::FLUSH, 0, 0, 0);
        eventually("the flush is under way", || disk.in_flight() == 1);
        disk.shared.failures.raise();
        drop(client);
        disk.release(0);
        eventually("the flush has ended", || disk.in_flight() == 0);
        let mut again = open(&world, "volume");
        assert_eq!((flush(&mut again), flush(&mut again)), (EIO, 0));
    });
}

#[test]
fn read_only_client_gets_no_loss_report_and_hides_none_from_others() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::new(1 << 20);
        world.export("volume", &disk);
        let export = NbdExport {
            name: "look".to_owned(),
            description: String::new(),
            disk: disk.clone(),
            read_only: true,
            throttle: Arc::default(),
        };
        world.server.add_export(export).unwrap();
        let (mut reader, mut writer) = (open(&world, "look"), open(&world, "volume"));
        disk.shared.failures.raise();
        assert_eq!((flush(&mut reader), disk.log().len()), (0, 0), "it goes nowhere");
        assert_eq!((flush(&mut writer), flush(&mut writer)), (EIO, 0));
    });
}

//! Clients of other projects: libnbd's tools and qemu's. A missing one is skipped with a message.

use std::process::{Command, Output};
use std::sync::Arc;
use std::time::Duration;

use cairn_exports::nbd::ListenAddress;

use crate::disk::TestDisk;
use crate::world::{World, on_both_rings};

/// Runs a tool; none if it is not installed.
fn tool(program: &str, args: &[&str]) -> Option<Output> {
    match Command::new(program).args(args).output() {
        Ok(output) => {
            let errors = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{program} {args:?}: {errors}");
            Some(output)
        }
        Err(error) => {
            cairn_testkit::skip(&format!("needs {program}: {error}"));
            None
        }
    }
}

fn pattern(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at / 512 * 7 + at) as u8).collect()
}

#[test]
fn nbdinfo_sees_every_export_with_its_sizes_and_abilities() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        world.export("alpha", &TestDisk::with_block(1 << 20, 4096));
        world.export("beta", &TestDisk::new(3 << 40));
        let uri = world.server.uri("beta").unwrap();
        let Some(listed) = tool("nbdinfo", &["--list", "--json", &uri]) else { return };
        let listed = String::from_utf8(listed.stdout).unwrap();
        for fact in [
            "\"export-name\": \"alpha\"",
            "\"export-name\": \"beta\"",
            "\"description\": \"the alpha volume\"",
            "\"export-size\": 1048576",
            "\"export-size\": 3298534883328",
            "\"block_size_minimum\": 1",
            "\"block_size_minimum\": 1",
            "\"can_multi_conn\": true",
            "\"can_fast_zero\": true",
            "\"can_df\": true",
            "\"is_read_only\": false",
            "\"base:allocation\"",
        ] {
            assert!(listed.contains(fact), "{fact} is missing in {listed}");
        }
    });
}

#[test]
fn nbdcopy_brings_back_what_it_stored() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk = TestDisk::new(8 << 20);
        world.export("volume", &disk);
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        let mut image = pattern(8 << 20);
        image[1 << 20..3 << 20].fill(0);
        std::fs::write(&from, &image).unwrap();
        let uri = world.server.uri("").unwrap();
        let copy = |from: &str, to: &str| tool("nbdcopy", &["--flush", from, to]).is_some();
        if !copy(from.to_str().unwrap(), &uri) {
            return;
        }
        assert!(disk.bytes(0, 8 << 20) == image);
        assert!(copy(&uri, to.to_str().unwrap()));
        assert!(std::fs::read(&to).unwrap() == image);
    });
}

#[test]
fn qemu_writes_zeroes_discards_and_reads_its_patterns_over_tcp() {
    on_both_rings(|ring| {
        let world = World::new(ring);
        let disk: Arc<TestDisk> = TestDisk::with_block(16 << 20, 4096);
        world.export("volume", &disk);
        let any = ListenAddress::Tcp("127.0.0.1:0".parse().unwrap());
        let ListenAddress::Tcp(address) = world.server.listen(&any).unwrap() else {
            panic!("a port")
        };
        let uri = format!("nbd://{address}/volume");
        let script = [
            "write -P 0xaa 0 1M",
            "write -f -P 0xbb 100 700",
            "write -z 64k 64k",
            "write -z -u 256k 128k",
            "discard 512k 64k",
            "flush",
            "read -P 0xbb 100 700",
            "read -P 0xaa 800 60000",
            "read -P 0 64k 64k",
            "read -P 0 256k 128k",
            "read -P 0xaa 128k 128k",
            "read -P 0 8M 8M",
        ];
        let mut args = vec!["-f", "raw"];
        script.iter().for_each(|line| args.extend(["-c", line]));
        args.push(&uri);
        let Some(output) = tool("qemu-io", &args) else { return };
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(!said.contains("verification failed"), "{said}");
        assert_eq!(disk.bytes(0, 100), [0xaa; 100]);
        let Some(map) = tool("qemu-img", &["map", "--output=json", &uri]) else { return };
        let map = String::from_utf8_lossy(&map.stdout).into_owned();
        assert!(map.contains("\"zero\": true, \"data\": false"), "{map}");
    });
}

#[test]
fn stopping_lets_a_client_that_is_done_go() {
    let world = World::new(cairn_reactor::RingKind::Auto);
    world.export("volume", &TestDisk::new(1 << 20));
    let uri = world.server.uri("").unwrap();
    tool("nbdinfo", &[&uri]);
    assert_eq!(world.stop(Duration::from_secs(60)), 0);
    assert!(!world.socket().exists());
}

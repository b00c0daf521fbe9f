//! Pools made, grown and trimmed; at each step the files are copied as a killed process would leave
//! them, and every copy is started again.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use cairn_format::thin::{Block, FLAG_NEEDS_CHECK, MetadataBlock, Opening};
use cairn_outcome::failure::Outcome;
use cairn_tools::args::FormatCommand;
use clap::{Command, FromArgMatches, Subcommand};

use crate::verbs::pool::{PoolCreate, PoolGrow};
use crate::verbs::snap::tests::{Moment, Patient, SECTORS, TestServer, folders};
use crate::verbs::steps::Step;
use crate::verbs::thin::ThinCreate;

/// A data block of these pools.
const BLOCK_BYTES: u64 = 64 << 10;

/// Something that is served anyway.
pub(crate) const OTHER: &str = "x=0 8 zero";

pub(crate) fn params(name: &str) -> PoolCreate {
    PoolCreate {
        name: name.to_owned(),
        data: "p.data".to_owned(),
        metadata: "p.meta".to_owned(),
        data_bytes: Some(4 << 20),
        ..PoolCreate::default()
    }
}

fn thin(server: &TestServer, name: &str) -> Outcome<()> {
    let (name, size_bytes) = (name.to_owned(), SECTORS * 512);
    server.verbs.thin_create(&ThinCreate { name, size_bytes, ..ThinCreate::default() }, &Patient)
}

fn steps(moments: &[Moment]) -> Vec<Step> {
    moments.iter().filter_map(|moment| moment.step).collect()
}

fn used_bytes(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}

#[test]
fn a_crash_while_a_pool_is_made_leaves_none_or_a_usable_one() {
    let (_all, work, copies) = folders();
    let server = TestServer::start(&work, OTHER).unwrap();
    let moments =
        server.moments(&copies, |server| server.verbs.pool_create(&params("p"), &Patient).unwrap());
    assert_eq!(steps(&moments), [Step::StoreMade, Step::Recorded, Step::Arranged, Step::Done]);
    let table = server.world.volume("p").unwrap().live_table().unwrap().lines()[0].target.table();
    assert_eq!(table, "p.meta p.data 128 0 2 detect_zeroes unmap");
    assert_eq!(fs::metadata(work.join("p.meta")).unwrap().len(), 4 << 20);
    for Moment { step, folder } in moments {
        let again = TestServer::start(&folder, OTHER).unwrap();
        assert_eq!(again.has("p"), step != Some(Step::StoreMade), "{step:?}");
        if again.has("p") {
            let info = &again.verbs.pool_status(Some("p")).unwrap()[0];
            assert_eq!((info.mode.as_str(), info.data_total_bytes), ("rw", 4 << 20));
            thin(&again, "p/v").unwrap();
        }
    }
}

#[test]
fn a_crash_while_a_pool_grows_leaves_it_as_it_was_or_larger() {
    let (_all, work, copies) = folders();
    let server = TestServer::start(&work, OTHER).unwrap();
    server.verbs.pool_create(&params("p"), &Patient).unwrap();
    thin(&server, "p/v").unwrap();
    server.write("v", 0, SECTORS, 2);
    server.flush("v");
    let grow = PoolGrow {
        name: "p".to_owned(),
        data_bytes: Some(8 << 20),
        metadata_bytes: Some(16 << 20),
    };
    let moments =
        server.moments(&copies, |server| server.verbs.pool_grow(&grow, &Patient).unwrap());
    assert_eq!(steps(&moments), [Step::StoreMade, Step::Recorded, Step::Resumed, Step::Done]);
    for Moment { step, folder } in moments {
        let again = TestServer::start(&folder, OTHER).unwrap();
        let info = &again.verbs.pool_status(None).unwrap()[0];
        let had_grown = ![Some(Step::StoreMade), Some(Step::Recorded)].contains(&step);
        let bytes = if had_grown { 8 << 20 } else { 4 << 20 };
        assert_eq!((info.data_total_bytes, info.metadata_total_bytes), (bytes, 16 << 20));
        assert_eq!(again.bytes("v"), [(SECTORS, 2)], "{step:?}");
        // Nothing of the growth is in another verb's way.
        thin(&again, "p/w").unwrap();
        again.verbs.thin_remove("w").unwrap();
        again.verbs.pool_grow(&grow, &Patient).unwrap();
        assert_eq!(again.verbs.pool_status(None).unwrap()[0].data_total_bytes, 8 << 20, "{step:?}");
    }
    // Once more, to what the device has become by itself.
    let file = fs::OpenOptions::new().write(true).open(work.join("p.data")).unwrap();
    file.set_len(9 << 20).unwrap();
    let name = "p".to_owned();
    server.verbs.pool_grow(&PoolGrow { name, ..PoolGrow::default() }, &Patient).unwrap();
    assert_eq!(server.verbs.pool_status(None).unwrap()[0].data_total_bytes, 9 << 20);
    let line = server.verbs.pool_grow(&grow, &Patient).unwrap_err().to_string();
    assert!(line.contains("p.data: --data-size: found 8388608, expected whole sectors"), "{line}");
}

#[test]
fn a_growth_that_fails_leaves_a_pool_that_serves_now_and_after_a_restart() {
    let (_all, work, copies) = folders();
    let server = TestServer::start(&work, OTHER).unwrap();
    server.verbs.pool_create(&params("p"), &Patient).unwrap();
    thin(&server, "p/v").unwrap();
    server.write("v", 0, SECTORS, 2);
    server.flush("v");
    let state = fs::read(work.join("state")).unwrap();
    // The metadata has no room for the counts of so many blocks.
    let (name, data_bytes) = ("p".to_owned(), Some(2 << 40));
    let grow = PoolGrow { name, data_bytes, ..PoolGrow::default() };
    let moments = server.moments(&copies, |server| {
        server.verbs.pool_grow(&grow, &Patient).unwrap_err();
    });
    assert_eq!(steps(&moments), [Step::StoreMade, Step::Recorded]);
    assert_eq!(fs::read(work.join("state")).unwrap(), state);
    let check = |server: &TestServer| {
        let info = &server.verbs.pool_status(None).unwrap()[0];
        assert_eq!((info.mode.as_str(), info.data_total_bytes), ("rw", 4 << 20));
        assert_eq!(server.bytes("v"), [(SECTORS, 2)]);
    };
    check(&server);
    server.write("v", 0, 8, 3);
    server.write("v", 0, 8, 2);
    server.flush("v");
    drop(server);
    check(&TestServer::start(&work, OTHER).unwrap());
    for Moment { folder, .. } in moments {
        check(&TestServer::start(&folder, OTHER).unwrap());
    }
}

#[test]
fn a_pool_that_grows_keeps_the_mode_that_a_message_gave_it() {
    let (_all, work, _) = folders();
    let server = TestServer::start(&work, OTHER).unwrap();
    server.verbs.pool_create(&params("p"), &Patient).unwrap();
    let mode =
        |server: &TestServer| server.verbs.pool_status(None).unwrap()[0].detect_zeroes.clone();
    for (asked, mebibytes) in [("off", 8), ("unmap", 12), ("off", 16)] {
        let words = ["detect_zeroes", asked].map(str::to_owned);
        server.world.message("p", 0, &words).unwrap();
        let (name, data_bytes) = ("p".to_owned(), Some(mebibytes << 20));
        let grow = PoolGrow { name, data_bytes, ..PoolGrow::default() };
        server.verbs.pool_grow(&grow, &Patient).unwrap();
        assert_eq!(mode(&server), asked);
    }
    // The table is what it was: so is the next start.
    drop(server);
    assert_eq!(mode(&TestServer::start(&work, OTHER).unwrap()), "unmap");
}

#[test]
fn a_message_during_a_growth_is_not_lost() {
    for at in [Step::StoreMade, Step::Recorded, Step::Resumed] {
        let (_all, work, _) = folders();
        let server = TestServer::start(&work, OTHER).unwrap();
        server.verbs.pool_create(&params("p"), &Patient).unwrap();
        let world = server.world.clone();
        *server.verbs.at_step.lock() = Box::new(move |step| {
            if step == at {
                let words = ["detect_zeroes", "off"].map(str::to_owned);
                world.message("p", 0, &words).unwrap();
            }
        });
        let (name, data_bytes) = ("p".to_owned(), Some(8 << 20));
        let grow = PoolGrow { name, data_bytes, ..PoolGrow::default() };
        server.verbs.pool_grow(&grow, &Patient).unwrap();
        let status = &server.verbs.pool_status(None).unwrap()[0];
        assert_eq!(status.detect_zeroes, "off", "{at:?}");
        let printed = server.world.printed("p").unwrap().unwrap();
        assert!(printed.contains("detect_zeroes off"), "{at:?}: {printed}");
    }
}

#[test]
fn a_pool_that_can_not_be_changed_does_not_grow_and_says_so() {
    let (_all, work, _) = folders();
    let server = TestServer::start(&work, OTHER).unwrap();
    server.verbs.pool_create(&params("p"), &Patient).unwrap();
    drop(server);
    let meta = work.join("p.meta");
    let mut bytes = fs::read(&meta).unwrap();
    let block: &mut Block = bytes.first_chunk_mut().unwrap();
    let Opening::Existing(mut superblock) = Opening::decide(block).unwrap() else { panic!() };
    superblock.flags |= FLAG_NEEDS_CHECK;
    *block = superblock.encode(MetadataBlock::SUPERBLOCK);
    fs::write(&meta, bytes).unwrap();
    let server = TestServer::start(&work, OTHER).unwrap();
    let (name, data_bytes) = ("p".to_owned(), Some(8 << 20));
    let grow = PoolGrow { name, data_bytes, ..PoolGrow::default() };
    let line = server.verbs.pool_grow(&grow, &Patient).unwrap_err().to_string();
    assert!(line.contains("p: mode: found its metadata needs a check"), "{line}");
    assert_eq!(fs::metadata(work.join("p.data")).unwrap().len(), 4 << 20);
}

#[test]
fn a_trim_gives_a_file_its_room_back_and_keeps_what_is_mapped() {
    let (_all, work, _) = folders();
    let server = TestServer::start(&work, OTHER).unwrap();
    let mut data = vec![7; 4 << 20];
    data[..4096].fill(0);
    fs::write(work.join("p.data"), &data).unwrap();
    server.verbs.pool_create(&PoolCreate { data_bytes: None, ..params("p") }, &Patient).unwrap();
    thin(&server, "p/v").unwrap();
    server.write("v", 0, 256, 3);
    let before = used_bytes(&work.join("p.data"));
    assert!(before >= 4 << 20);
    assert_eq!(server.verbs.pool_trim("p").unwrap(), (4 << 20) - (256 << 9));
    assert!(used_bytes(&work.join("p.data")) <= 256 << 9);
    assert_eq!(server.bytes("v"), [(256, 3), (SECTORS - 256, 0)]);
    server.write("v", 256, 256, 4);
    assert_eq!(server.bytes("v"), [(256, 3), (256, 4), (SECTORS - 512, 0)]);
}

#[test]
fn devices_that_are_not_blank_make_a_pool_once_they_are_formatted() {
    let (_all, work, _) = folders();
    let server = TestServer::start(&work, OTHER).unwrap();
    let wanted = PoolCreate { data_bytes: None, metadata_bytes: None, ..params("p") };
    fs::write(work.join("p.data"), vec![7; 4 << 20]).unwrap();
    fs::write(work.join("p.meta"), vec![7; 4 << 20]).unwrap();
    let create = || server.verbs.pool_create(&wanted, &Patient).map_err(|error| error.to_string());
    let at_0 = "not blank: found data (a byte that is not zero) at byte 0; to lose that: cairn";
    let line = create().unwrap_err();
    assert_eq!(line, format!("p.data: {at_0} format pool-data p.data --yes"));
    format(&work, "pool-data p.data --yes");
    let line = create().unwrap_err();
    let options = format!("--block-size {}", wanted.block_sectors.unwrap_or(128) * 512);
    assert_eq!(line, format!("p.meta: {at_0} format thin-pool p.meta {options} --yes"));
    format(&work, &format!("thin-pool p.meta {options} --yes"));
    create().unwrap();
    thin(&server, "p/v").unwrap();
    server.write("v", 0, 256, 3);
    drop(server);
    // A pool with a volume is not empty.
    fs::remove_file(work.join("state")).unwrap();
    let server = TestServer::start(&work, OTHER).unwrap();
    format(&work, "pool-data p.data --yes");
    let line = server.verbs.pool_create(&wanted, &Patient).unwrap_err().to_string();
    assert!(line.starts_with("p.meta: not blank: found thin-pool-metadata at byte 0; "), "{line}");
}

/// `cairn format` on a device in a folder.
fn format(folder: &Path, words: &str) {
    let mut words: Vec<String> = words.split(' ').map(str::to_owned).collect();
    words[1] = folder.join(&words[1]).display().to_string();
    let args = std::iter::once("format".to_owned()).chain(words);
    let matches = FormatCommand::augment_subcommands(Command::new("format")).get_matches_from(args);
    let command = FormatCommand::from_arg_matches(&matches).unwrap();
    assert_eq!(cairn_tools::format::run(&command).unwrap(), 0);
}

#[test]
fn a_volume_in_use_is_no_device_of_a_pool() {
    let (_all, work, _) = folders();
    fs::write(work.join("big"), vec![0; 8 << 20]).unwrap();
    let server = TestServer::start(&work, "d=0 16384 linear big 0").unwrap();
    let pool = |name: &str, data: &str, metadata: &str| {
        let (data, metadata) = (data.to_owned(), metadata.to_owned());
        let data_bytes = (!data.starts_with('@')).then_some(4 << 20);
        server
            .verbs
            .pool_create(&PoolCreate { data, metadata, data_bytes, ..params(name) }, &Patient)
    };
    pool("p", "@d", "p.meta").unwrap();
    for (refused, part) in [
        (pool("q", "@d", "q.meta"), "d: users: found volume 'p' on it, expected none"),
        (pool("q", "q.data", "@d"), "d: users: found volume 'p' on it, expected none"),
        (pool("q", "@p", "q.meta"), "p: users: found a pool's own volumes, expected none"),
    ] {
        let line = refused.unwrap_err().to_string();
        assert!(line.contains(part), "{line}");
        assert_eq!(server.files(), ["big", "p.meta", "state"], "{line}");
    }
    thin(&server, "p/v").unwrap();
    server.write("v", 0, SECTORS, 2);
    assert_eq!(server.bytes("v"), [(SECTORS, 2)]);
}

#[test]
fn a_refused_pool_create_prints_one_line_and_leaves_no_file() {
    let (_all, work, _) = folders();
    let server = TestServer::start(&work, OTHER).unwrap();
    let mut gpt = vec![0; 1 << 20];
    gpt[512..520].copy_from_slice(b"EFI PART");
    gpt[510..512].copy_from_slice(&[0x55, 0xaa]);
    fs::write(work.join("disk"), &gpt).unwrap();
    let own = |change: &dyn Fn(&mut PoolCreate)| {
        let mut params = params("p");
        change(&mut params);
        params
    };
    let data = |data: &str, bytes| {
        let data = data.to_owned();
        own(&move |params| (params.data, params.data_bytes) = (data.clone(), bytes))
    };
    for (wrong, part) in [
        (own(&|params| params.name = "a@b".into()), "without '@'"),
        (own(&|params| params.name = "x".into()), "x: name: found a volume of it"),
        (own(&|params| params.block_sectors = Some(100)), "--block-size: found 51200 bytes"),
        (own(&|params| params.block_sectors = Some(u64::MAX)), "found 18446744073709551615 bytes"),
        (own(&|params| params.data_bytes = None), "--data-size: found none"),
        (own(&|params| params.data_bytes = Some(4096)), "size: found 8 sectors"),
        (own(&|params| params.data = "p.meta".into()), "found the data device itself"),
        (own(&|params| params.features = Some(vec!["shiny".into()])), "option: found 'shiny'"),
        (data("mem:1M", None), "found 'mem:1M'"),
        (
            data("disk", None),
            "disk: not blank: found gpt at byte 512, mbr at byte 0; to lose that: \
             cairn format pool-data disk --yes",
        ),
        (data("disk", Some(1 << 20)), "--data-size: found 1048576, expected none"),
        (data("@nobody", None), "nobody: there is no volume of this name"),
        (data("a b", Some(1 << 20)), "without spaces"),
    ] {
        let line = server.verbs.pool_create(&wrong, &Patient).unwrap_err().to_string();
        assert!(line.contains(part), "{line}");
        let files: Vec<_> = server.files().into_iter().filter(|file| file != "state").collect();
        assert_eq!(files, ["disk"], "{line}");
    }
    assert_eq!(fs::read(work.join("disk")).unwrap(), gpt);
    for line in [
        server.verbs.pool_trim("p").unwrap_err().to_string(),
        server.verbs.pool_status(Some("x")).unwrap_err().to_string(),
        thin(&server, "x/v").unwrap_err().to_string(),
    ] {
        assert!(line.contains("there is no pool of this name; cairn pool create"), "{line}");
    }
    server.verbs.pool_create(&params("p"), &Patient).unwrap();
    let again = PoolCreate { data: "q.data".into(), ..params("q") };
    let line = server.verbs.pool_create(&again, &Patient).unwrap_err().to_string();
    assert!(line.contains("p.meta"), "in use: {line}");
}

#[test]
fn a_pool_grows_step_by_step_until_enough_blocks_are_free() {
    let (_all, work, _) = folders();
    let server = TestServer::start(&work, OTHER).unwrap();
    let (data_bytes, low_water_blocks) = (Some(4 * BLOCK_BYTES), Some(8));
    let features = Some(["grow", "128"].map(str::to_owned).to_vec());
    let pool = PoolCreate { data_bytes, low_water_blocks, features, ..params("p") };
    server.verbs.pool_create(&pool, &Patient).unwrap();
    server.verbs.watch_over().unwrap();
    thin(&server, "p/v").unwrap();
    // The only event: each further step is the keeper's own call.
    server.write("v", 0, 128, 7);
    let total = || server.verbs.pool_status(Some("p")).unwrap()[0].data_total_bytes;
    while total() < 10 * BLOCK_BYTES {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

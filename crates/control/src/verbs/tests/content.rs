//! Tables beneath a volume with snapshots: what ruins the snapshots is refused.

use std::fs;
use std::path::Path;

use cairn_block::ConfigKind;
use cairn_outcome::failure::Outcome;

use crate::verbs::snap::tests::{Bed, Patient, SECTORS, all_of, folders};
use crate::verbs::volume::{VolumeLoad, VolumeReplace, VolumeResume};

const OWN: &str = "0 1024 linear disk 0";
const RUINED: &str = "v@real: table: found other content than now, which ruins v@mon, v@tue, expected \
                      the same device, with a cache or without (remove or merge the snapshots first; \
                      --same-content if it is a copy)";

/// The volume `v` of byte 1 with two snapshots, beside volumes on other devices.
fn snapped(work: &Path) -> Bed {
    fs::write(work.join("other"), vec![1; SECTORS as usize * 512]).unwrap();
    let bed = Bed::fresh(work, "v=0 1024 linear disk 0");
    bed.create("v@mon").unwrap();
    bed.create("v@tue").unwrap();
    bed
}

fn replacing(table: &str) -> VolumeReplace {
    let (name, table) = ("v@real".to_owned(), table.to_owned());
    VolumeReplace { name, table, ..VolumeReplace::default() }
}

fn replace(bed: &Bed, params: &VolumeReplace) -> Outcome<()> {
    bed.verbs.replace(params, &Patient).map(drop)
}

#[test]
fn a_table_beneath_snapshots_with_other_content_is_refused() {
    let (_all, work, _) = folders();
    let bed = snapped(&work);
    bed.write("v", 0, 8, 2);
    for table in [
        "0 1024 linear other 0",
        "0 1024 zero",
        "0 1024 error",
        "0 512 linear disk 0\n512 512 linear other 512",
        "0 512 linear disk 512\n512 512 linear disk 0",
        "0 1024 striped 2 8 disk 0 disk 512",
        "0 1024 writecache s other cache 4096 0",
        "0 1016 linear disk 8",
    ] {
        let error = replace(&bed, &replacing(table)).unwrap_err();
        assert_eq!((error.kind, error.to_string().as_str()), (ConfigKind::Busy, RUINED), "{table}");
        assert_eq!(bed.verbs.load("v@real", table).unwrap_err().to_string(), RUINED, "{table}");
        let real = bed.world.volume("v@real").unwrap();
        assert!(!real.is_suspended() && real.inactive_table().is_none(), "{table}");
        assert_eq!(bed.verbs.told()["v@real"].table.as_deref(), Some(OWN));
    }
    bed.write("v", 8, 8, 3);
    assert_eq!(bed.bytes("v@mon"), all_of(1));
    assert_eq!(bed.bytes("v"), [(8, 2), (8, 3), (1008, 1)]);
}

#[test]
fn a_refused_load_keeps_the_table_that_was_loaded_before() {
    let (_all, work, _) = folders();
    let bed = snapped(&work);
    bed.verbs.load("v@real", "0 512 linear disk 0\n512 512 linear disk 512").unwrap();
    bed.verbs.load("v@real", "0 1024 error").unwrap_err();
    let waiting = bed.world.volume("v@real").unwrap().inactive_table().unwrap();
    assert_eq!(waiting.lines().len(), 2);
    bed.resume("v@real").unwrap();
}

#[test]
fn a_cache_comes_and_goes_beneath_snapshots() {
    let (_all, work, _) = folders();
    let bed = snapped(&work);
    replace(&bed, &replacing("0 1024 writecache s disk cache 4096 0")).unwrap();
    bed.write("v", 0, 64, 2);
    let line = replace(&bed, &replacing(OWN)).unwrap_err().to_string();
    assert!(line.starts_with("v@real: dirty data: found 32 KiB on cache"), "{line}");
    replace(&bed, &VolumeReplace { flush: true, ..replacing(OWN) }).unwrap();
    assert_eq!((bed.bytes("v"), bed.bytes("v@mon")), (vec![(64, 2), (960, 1)], all_of(1)));
    // The same device in pieces, and a longer table.
    fs::OpenOptions::new().write(true).open(work.join("disk")).unwrap().set_len(1 << 20).unwrap();
    for table in ["0 512 linear disk 0\n512 512 linear disk 512", "0 2048 linear disk 0"] {
        replace(&bed, &replacing(table)).unwrap();
        assert_eq!(bed.bytes("v@mon"), all_of(1), "{table}");
    }
}

#[test]
fn stripes_beneath_snapshots_are_known_by_any_name() {
    let (_all, work, _) = folders();
    fs::write(work.join("other"), vec![1; SECTORS as usize * 512]).unwrap();
    fs::write(work.join("cache"), vec![0; 1 << 20]).unwrap();
    fs::write(work.join("a"), vec![1; 512 * 512]).unwrap();
    fs::write(work.join("b"), vec![1; 512 * 512]).unwrap();
    let bed = Bed::start(&work, "v=0 1024 striped 2 8 a 0 b 0").unwrap();
    bed.create("v@mon").unwrap();
    replace(&bed, &replacing("0 1024 striped 2 8 ./a 0 b 0")).unwrap();
    for other in ["0 1024 striped 2 16 a 0 b 0", "0 1024 striped 2 8 b 0 a 0"] {
        replace(&bed, &replacing(other)).unwrap_err();
    }
    bed.verbs.snap_remove("v@mon").unwrap();
    // Beneath a volume, and beneath a cache.
    bed.replace("v", "0 1024 linear other 0", false).unwrap();
    bed.verbs.create("s", "0 1024 striped 2 8 a 0 b 0").unwrap();
    bed.replace("v", "0 1024 linear @s 0", false).unwrap();
    bed.create("v@mon").unwrap();
    replace(&bed, &replacing("0 1024 writecache s @s cache 4096 0")).unwrap();
    assert_eq!(bed.bytes("v@mon"), all_of(1));
}

#[test]
fn a_copy_may_take_the_place_of_the_device_beneath_snapshots() {
    let (_all, work, _) = folders();
    let bed = snapped(&work);
    let copy = "0 1024 linear other 0";
    replace(&bed, &VolumeReplace { same_content: true, ..replacing(copy) }).unwrap();
    assert_eq!(bed.verbs.told()["v@real"].table.as_deref(), Some(copy));
    let (name, table) = ("v@real".to_owned(), OWN.to_owned());
    bed.verbs.load_table(&VolumeLoad { name: name.clone(), table, same_content: true }).unwrap();
    assert!(bed.resume("v@real").unwrap_err().to_string().contains("ruins v@mon, v@tue"));
    let params = VolumeResume { name, same_content: true, ..VolumeResume::default() };
    bed.verbs.resume(&params, &Patient).unwrap();
    assert_eq!(bed.bytes("v@tue"), all_of(1));
    // Without snapshots there is nothing to ruin.
    bed.verbs.snap_remove("v@mon").unwrap();
    bed.verbs.snap_remove("v@tue").unwrap();
    bed.replace("v", "0 1024 zero", false).unwrap();
}

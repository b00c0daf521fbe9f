//! check and probe on the metadata of clones.

use super::place::{Place, json};

#[test]
fn check_reads_what_the_kernel_wrote_and_finds_damage() {
    let place = Place::new();
    for name in ["partly.meta", "large.meta"] {
        place.golden("clone", name);
    }
    let said = "partly.meta: sound: 28 of 126 regions of 8 sectors hydrated, 6 of 24 metadata \
                blocks\n";
    assert_eq!(place.cairn(&["check", "partly.meta"]).ok(), said);
    let ran = place.cairn(&["check", "--json", "large.meta"]);
    let report = &json(&ran.out)[0];
    assert_eq!(report["format"], "dm-clone");
    assert_eq!(report["counts"]["regions"], 300_001);
    assert_eq!(report["header"]["sectors"], 2_400_004);
    let mut bytes = place.read("partly.meta");
    bytes[10 * 4096 + 30] ^= 1;
    place.write("damaged.meta", bytes);
    let ran = place.cairn(&["check", "damaged.meta"]);
    assert_eq!(ran.code, 2, "{ran:?}");
    let said = "damaged.meta: block 10, array block checksum: found 0x";
    assert!(ran.out.starts_with(said), "{ran:?}");
    let ran = place.cairn(&["probe", "partly.meta"]);
    assert!(ran.out.starts_with("partly.meta: dm-clone-metadata at byte 0"), "{ran:?}");
}

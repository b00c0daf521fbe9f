//! The byte tables of `docs/formats` match the codec.

use std::path::PathBuf;

use cairn_format::writecache::{
    ENTRY_BYTES, ENTRY_FIELDS, MAGIC, SUPERBLOCK_BYTES, SUPERBLOCK_FIELDS, VERSION,
};
use cairn_format::{Field, bcache, clone, qcow2, snapshot, thin};

fn document(name: &str) -> String {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/formats");
    std::fs::read_to_string(folder.join(name)).expect("the document is there")
}

/// The rows of the first table after a heading, as trimmed cells.
fn table<'a>(document: &'a str, heading: &str) -> Vec<Vec<&'a str>> {
    let (_, section) = document.split_once(heading).expect("the heading is there");
    section
        .lines()
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'))
        .skip(2)
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect())
        .collect()
}

fn assert_fields(rows: &[Vec<&str>], fields: &[Field], size: usize) {
    let described: Vec<(usize, usize, &str)> = rows
        .iter()
        .map(|row| {
            (
                row[0].parse().expect("a table row begins with offset and size"),
                row[1].parse().expect("a table row begins with offset and size"),
                row[2].trim_matches('`'),
            )
        })
        .collect();
    let coded: Vec<(usize, usize, &str)> =
        fields.iter().map(|field| (field.offset, field.size, field.name)).collect();
    assert_eq!(described, coded);
    let end = fields.iter().fold(0, |end, field| {
        assert_eq!(field.offset, end, "{} follows its predecessor", field.name);
        field.offset + field.size
    });
    assert_eq!(end, size);
}

#[test]
fn the_writecache_tables_match_the_codec() {
    let document = document("writecache.md");
    let superblock = table(&document, "### Superblock, 64 bytes");
    assert_fields(&superblock, &SUPERBLOCK_FIELDS, SUPERBLOCK_BYTES);
    assert_eq!(superblock[0][3], format!("{MAGIC:#010x}"));
    assert_eq!(superblock[1][3], VERSION.to_string());
    let entry = table(&document, "### Entry, 16 bytes");
    assert_fields(&entry, &ENTRY_FIELDS, ENTRY_BYTES);
}

#[test]
fn the_snapshot_tables_match_the_codec() {
    let document = document("snapshot.md");
    let header = table(&document, "### Header, 16 bytes");
    assert_fields(&header, &snapshot::HEADER_FIELDS, snapshot::HEADER_BYTES);
    assert_eq!(header[0][3], format!("{:#010x}", snapshot::MAGIC));
    assert_eq!(header[2][3], snapshot::VERSION.to_string());
    let record = table(&document, "### Record, 16 bytes");
    assert_fields(&record, &snapshot::RECORD_FIELDS, snapshot::RECORD_BYTES);
}

#[test]
fn the_thin_tables_match_the_codec() {
    let document = document("thin.md");
    let superblock = table(&document, "### Superblock, 364 bytes");
    assert_fields(&superblock, &thin::SUPERBLOCK_FIELDS, 364);
    assert_eq!(superblock[4][3], thin::MAGIC.to_string());
    assert_eq!(superblock[5][3], thin::VERSION.to_string());
    let node = table(&document, "### Node header, 32 bytes");
    assert_fields(&node, &thin::NODE_FIELDS, thin::NODE_HEADER_BYTES);
    let details = table(&document, "### Details, 24 bytes");
    assert_fields(&details, &thin::DEVICE_DETAILS_FIELDS, 24);
    let root = table(&document, "### Space map root, 32 bytes");
    assert_fields(&root, &thin::SPACE_MAP_ROOT_FIELDS, 32);
    let entry = table(&document, "### Index entry, 16 bytes");
    assert_fields(&entry, &thin::INDEX_ENTRY_FIELDS, thin::INDEX_ENTRY_BYTES);
    let salts = table(&document, "## Checksums");
    let salts: Vec<_> = salts.iter().map(|row| (row[0], row[1].to_owned())).collect();
    let coded = thin::Kind::ALL.map(|kind| (kind.name(), kind.salt().to_string()));
    assert_eq!(salts, coded);
}

#[test]
fn the_clone_tables_match_the_codec() {
    let document = document("clone.md");
    let superblock = table(&document, "### Superblock, 196 bytes");
    assert_fields(&superblock, &clone::SUPERBLOCK_FIELDS, 196);
    assert_eq!(superblock[4][3], format!("{:#x}", clone::MAGIC));
    assert_eq!(superblock[5][3], clone::VERSION.to_string());
    let header = table(&document, "### Array block header, 24 bytes");
    assert_fields(&header, &clone::ARRAY_FIELDS, clone::ARRAY_HEADER_BYTES);
    let salts = table(&document, "# The metadata of a clone");
    let salts: Vec<_> = salts.iter().map(|row| (row[0], row[1].to_owned())).collect();
    let kinds = [thin::Kind::CloneSuperblock, thin::Kind::Array];
    assert_eq!(salts, kinds.map(|kind| (kind.name(), kind.salt().to_string())));
}

#[test]
fn the_qcow2_table_matches_the_codec() {
    let header = document("qcow2.md");
    let header = table(&header, "### Header, 112 bytes");
    assert_fields(&header, &qcow2::HEADER_FIELDS, qcow2::HEADER_BYTES);
    assert_eq!(header[0][3], format!("{:#x}", qcow2::MAGIC));
    let bits = format!("{} to {}", qcow2::CLUSTER_BITS_MIN, qcow2::CLUSTER_BITS_MAX);
    assert_eq!(header[4][3], bits);
}

#[test]
fn the_bcache_tables_match_the_codec() {
    use bcache::{intent, journal, node, priorities, superblock, uuids, zones};

    let document = document("bcache.md");
    let matches = |heading, fields: &[Field], size| {
        assert_fields(&table(&document, heading), fields, size);
    };
    matches("### Superblock, 4096 bytes", &superblock::SUPERBLOCK_FIELDS, bcache::SUPERBLOCK_BYTES);
    matches("### Write-intent slot, 1536 bytes", &intent::SLOT_FIELDS, intent::SLOT_BYTES);
    matches("### Lineage, 40 bytes", &intent::LINEAGE_FIELDS, intent::LINEAGE_BYTES);
    matches("### Zone map header, 128 bytes", &zones::HEADER_FIELDS, zones::HEADER_BYTES);
    matches("### Bset, 32 bytes", &node::BSET_FIELDS, node::SET_HEADER_BYTES);
    matches("### Journal entry, 240 bytes", &journal::ENTRY_FIELDS, journal::ENTRY_HEADER_BYTES);
    matches("### Priorities, 40 bytes", &priorities::PRIORITIES_FIELDS, priorities::HEADER_BYTES);
    matches("### Volume, 128 bytes", &uuids::UUID_FIELDS, uuids::ENTRY_BYTES);
}

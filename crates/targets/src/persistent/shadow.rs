//! The shadows that a commit makes of the metadata space map.
//!
//! The map counts its own blocks. To write a changed bitmap, a block is allocated for its shadow
//! and the old block is freed. This changes two counts, perhaps in bitmaps that had not changed.
//! But every bitmap and every node is shadowed at most once in a transaction, and their contents
//! are taken from memory when they are written. So the loop ends, at the latest when every bitmap
//! has been shadowed.

use cairn_block::Env;
use cairn_format::thin::block::Kind;
use cairn_format::thin::{Block, IndexBlockMut, MetadataBlock, RefCount, SpaceMapRoot};

use super::edit::Editor;
use super::error::{Error, MetadataPart};
use super::nodes::Nodes;
use super::transaction::{Transaction, outside};

/// A block of the metadata space map that is no node.
#[derive(Clone, Copy)]
pub(super) enum MapBlock {
    Page(usize),
    Index,
}

impl MapBlock {
    /// Its content, as the transaction leaves it.
    pub fn fill(self, txn: &Transaction, out: &mut Block) -> Kind {
        match self {
            MapBlock::Page(page) => {
                out.copy_from_slice(&txn.metadata.pages()[page].bits[..]);
                Kind::Bitmap
            }
            MapBlock::Index => {
                let mut index = IndexBlockMut::init(out);
                for page in 0..txn.metadata.pages().len() {
                    index.set(page, txn.metadata.index_entry(page));
                }
                Kind::Index
            }
        }
    }
}

/// Shadows what has changed of the map, and its index block. Nothing is allocated afterwards.
pub(super) async fn shadow_metadata_map(
    env: &Env,
    nodes: &Nodes,
    txn: &mut Transaction,
    map: &mut SpaceMapRoot,
) -> Result<Vec<(MetadataBlock, MapBlock)>, Error> {
    let index = txn.allocate()?;
    let old = map.bitmap_root;
    if old != MetadataBlock::SUPERBLOCK {
        txn.lower(&outside(MetadataPart::MetadataIndex, old), old)?;
    }
    map.bitmap_root = index;
    let mut shadows = vec![(index, MapBlock::Index)];
    let mut shadowed = vec![false; txn.metadata.pages().len()];
    loop {
        let large = txn.metadata.take_changed_large();
        if !large.is_empty() {
            let mut editor = Editor::<RefCount>::new(env, nodes, txn, MetadataPart::MetadataCounts);
            map.ref_count_root = editor.edit(map.ref_count_root, &large).await?;
        }
        let pages = txn.metadata.take_changed_pages();
        if large.is_empty() && pages.iter().all(|&page| shadowed[page]) {
            return Ok(shadows);
        }
        for page in pages {
            if std::mem::replace(&mut shadowed[page], true) {
                continue;
            }
            let shadow = txn.allocate()?;
            if let Some(old) = txn.metadata.move_page(page, shadow) {
                txn.lower(&outside(MetadataPart::MetadataBitmap, old), old)?;
            }
            shadows.push((shadow, MapBlock::Page(page)));
        }
    }
}

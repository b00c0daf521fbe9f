//! The golden thin pools, for the tests that use them.

use cairn_format::thin::{BLOCK_BYTES, Block, MetadataBlock, block};

/// The manifest's entry for one image.
pub struct Golden {
    pub name: String,
    pub meta: Vec<u8>,
    pub data_blocks: u64,
    pub used_data: u64,
    pub needs_check: bool,
    /// Device id and mapped blocks, where the manifest has them.
    pub devices: Vec<(u64, u64)>,
}

/// A file among the images, unpacked.
pub fn image(name: &str) -> Vec<u8> {
    cairn_testkit::image("thin", name)
}

/// Every image of the manifest.
pub fn manifest() -> Vec<Golden> {
    cairn_testkit::manifest("thin").iter().map(golden).collect()
}

fn golden(record: &serde_json::Value) -> Golden {
    let number = |key: &str| record[key].as_u64().expect("the manifest has the number");
    let name = record["meta"].as_str().expect("the manifest names the image").to_owned();
    let devices = record["devs"].as_object().expect("the manifest lists devices");
    let device = |(id, facts): (&String, &serde_json::Value)| {
        (id.parse().expect("an id"), facts["mapped"].as_u64().expect("a count"))
    };
    Golden {
        meta: image(&name),
        data_blocks: number("data_blocks"),
        used_data: number("used_data"),
        needs_check: number("needs_check") == 1,
        devices: devices.iter().map(device).collect(),
        name,
    }
}

impl Golden {
    /// A block of the metadata.
    pub fn block(&self, at: MetadataBlock) -> &Block {
        let begin = at.0 as usize * BLOCK_BYTES;
        block::of(&self.meta[begin..begin + BLOCK_BYTES]).expect("a whole block")
    }
}

//! `cairn pool` as a client sends it.

use cairn_outcome::failure::{Outcome, wrong};
use cairn_outcome::stdout::{print, print_json};
use cairn_tools::args::bytes;
use serde_json::json;

use super::{absolute, client, show, tell};
use crate::cli::{PoolCommand, PoolCreateArgs};
use crate::control::rpc::{AnyName, OneName, PoolCreateParams, PoolGrowParams};
use crate::verbs::pool::status::status_text;

/// Runs the verb.
///
/// # Errors
/// There is no server, or it refuses.
pub fn run(verb: PoolCommand) -> Outcome<u8> {
    match verb {
        PoolCommand::Create(args) => create(*args),
        PoolCommand::Status(read) => {
            let params = json!(AnyName { name: read.name });
            show(&read.server, read.json, "pool_status", params, status_text)
        }
        PoolCommand::Grow { pool, data_size, metadata_size } => {
            let params = PoolGrowParams {
                name: pool.name,
                data_bytes: sized("--data-size", data_size.as_ref())?,
                metadata_bytes: sized("--metadata-size", metadata_size.as_ref())?,
            };
            tell(&pool.server, "pool_grow", json!(params))
        }
        PoolCommand::Trim { pool, json } => {
            let answer = client(&pool.server)?.ask("pool_trim", OneName { name: pool.name })?;
            match json {
                true => print_json(&answer),
                false => print(&format!("{} bytes trimmed\n", answer["trimmed_bytes"])),
            }
        }
    }
}

fn sized(option: &str, size: Option<&String>) -> Outcome<Option<u64>> {
    size.map(|size| bytes(option, size)).transpose()
}

fn create(args: PoolCreateArgs) -> Outcome<u8> {
    let features = features(&args);
    let block = sized("--block-size", args.block_size.as_ref())?;
    let params = PoolCreateParams {
        name: args.pool.name,
        data: absolute(&args.data)?,
        metadata: absolute(&args.metadata)?,
        data_bytes: sized("--data-size", args.data_size.as_ref())?,
        metadata_bytes: sized("--metadata-size", args.metadata_size.as_ref())?,
        block_sectors: block.map(|bytes| bytes / 512),
        low_water_blocks: args.low_water,
        features: Some(features),
    };
    if params.data == params.metadata {
        let found = "the data device itself";
        return Err(wrong(params.metadata, "--metadata", found, "another device"));
    }
    tell(&args.pool.server, "pool_create", json!(params))
}

/// The words of the table's features.
fn features(args: &PoolCreateArgs) -> Vec<String> {
    let mut words = Vec::new();
    let flags = [
        ("skip_block_zeroing", args.skip_block_zeroing),
        ("ignore_discard", args.ignore_discard),
        ("no_discard_passdown", args.no_discard_passdown),
        ("error_if_no_space", args.error_if_no_space),
    ];
    words.extend(flags.into_iter().filter(|(_, set)| *set).map(|(word, _)| word.to_owned()));
    let numbers = [
        ("no_space_timeout", args.no_space_timeout),
        ("data_mark", args.data_mark),
        ("metadata_mark", args.metadata_mark),
    ];
    for (word, value) in numbers {
        words.extend(value.into_iter().flat_map(|value| [word.to_owned(), value.to_string()]));
    }
    let detect = args.detect_zeroes.as_deref().unwrap_or("unmap");
    words.extend(["detect_zeroes", detect].map(str::to_owned));
    words
}

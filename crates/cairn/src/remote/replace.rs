//! `cairn resume` and `cairn replace`, the client's side: what a swap of tables may do, and how far
//! a flush before it is.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use cairn_outcome::failure::{Outcome, refused};
use cairn_tools::progress::{Left, Progress};
use serde_json::{Value, json};

use super::{client, pass_on, table_of, tell};
use crate::cli::{NameArgs, ServerArgs, SwapArgs, TableArgs};
use crate::control::client::Client;
use crate::control::rpc::{AnyName, ReplaceParams, ResumeParams};

/// How often the server is asked how much is left.
const TICK: Duration = Duration::from_millis(200);

/// `resume`
///
/// # Errors
/// There is no server, or it refuses.
pub fn resume(volume: NameArgs, swap: SwapArgs) -> Outcome<u8> {
    let NameArgs { server, name } = volume;
    let SwapArgs { flush, discard_dirty, shrink, same_content } = swap;
    let named = name.clone();
    let params = ResumeParams { name: named, flush, discard_dirty, shrink, same_content };
    ask(&server, &name, "volume_resume", json!(params), flush)
}

/// `replace`
///
/// # Errors
/// There is no server, or it refuses.
pub fn replace(args: TableArgs, swap: SwapArgs) -> Outcome<u8> {
    let table = table_of(&args)?;
    let NameArgs { server, name } = args.volume;
    let SwapArgs { flush, discard_dirty, shrink, same_content } = swap;
    let named = name.clone();
    let params = ReplaceParams { name: named, table, flush, discard_dirty, shrink, same_content };
    ask(&server, &name, "volume_replace", json!(params), flush)
}

fn ask(
    server: &ServerArgs,
    name: &str,
    method: &'static str,
    params: Value,
    flush: bool,
) -> Outcome<u8> {
    if !flush {
        return tell(server, method, params);
    }
    let (asker, watcher) = (client(server)?, client(server)?);
    let total = left(&watcher, name)?;
    let (send, answered) = channel();
    // It waits for the answer; whoever ends this process hangs up, which ends the flush.
    std::thread::spawn(move || drop(send.send(asker.ask(method, params))));
    let mut progress = (total.bytes > 0).then(|| Progress::begin_drain(total));
    loop {
        let answer = match answered.recv_timeout(TICK) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => {
                if let (Some(progress), Ok(left)) = (&mut progress, left(&watcher, name)) {
                    progress.show(left);
                }
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => {
                let kind = cairn_block::ConfigKind::System;
                Err(refused(kind, name, method, "no answer", "one"))
            }
        };
        if let Some(progress) = &mut progress {
            // Of the new table, which has none of it, if it is live.
            progress.finish(left(&watcher, name).unwrap_or_default(), ());
        }
        return answer.map(|answer| pass_on(name, &answer));
    }
}

/// What only the caches of a volume have.
fn left(server: &Client, name: &str) -> Outcome<Left> {
    let answer = server.ask("volume_info", AnyName { name: Some(name.to_owned()) })?;
    let bytes = answer[0]["dirty_bytes"].as_u64().unwrap_or(0);
    Ok(Left { blocks: bytes / 512, bytes })
}

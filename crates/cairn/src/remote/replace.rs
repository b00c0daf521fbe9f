//! The client's side of `cairn resume` and `cairn replace`, with the progress of `--flush`.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use cairn_outcome::failure::{Outcome, refused};
use cairn_tools::progress::{Left, Progress};

use super::{pass_on, tell};
use cairn_control::client::Client;
use cairn_control::verbs::verb::{Done, Verb};
use cairn_control::verbs::volume::VolumeInfo;

/// How often the client asks how much is left.
const TICK: Duration = Duration::from_millis(200);

/// Asks for a swap of tables. With `flush`, shows how much is left until the answer comes.
///
/// # Errors
/// There is no server, or it refuses.
pub fn ask<V>(server: &Client, verb: V, name: &str, flush: bool) -> Outcome<u8>
where
    V: Verb<Answer = Done> + Send + 'static,
{
    if !flush {
        return tell(server, &verb);
    }
    let (asker, total) = (server.clone(), left(server, name)?);
    let (send, answered) = channel();
    // The thread waits for the answer. The end of this process closes the connection, which ends
    // the flush.
    std::thread::spawn(move || drop(send.send(asker.ask(&verb))));
    let mut progress = (total.bytes > 0).then(|| Progress::begin_drain(total));
    let mut last = total;
    loop {
        let answer = match answered.recv_timeout(TICK) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => {
                if let (Some(progress), Ok(left)) = (&mut progress, left(server, name)) {
                    progress.show(left);
                    last = left;
                }
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => {
                let kind = cairn_block::ConfigKind::System;
                Err(refused(kind, name, V::METHOD, "no answer", "one"))
            }
        };
        if let Some(progress) = &mut progress {
            // If the new table is live already, it has no dirty bytes. A server that has ended
            // answers nothing.
            progress.finish(left(server, name).unwrap_or(last), ());
        }
        return pass_on(name, &answer?);
    }
}

/// The bytes that only the caches of a volume have.
fn left(server: &Client, name: &str) -> Outcome<Left> {
    let infos = server.ask(&VolumeInfo { name: Some(name.to_owned()) })?;
    let bytes = infos.iter().map(|info| info.dirty_bytes).sum();
    Ok(Left { blocks: bytes / 512, bytes })
}

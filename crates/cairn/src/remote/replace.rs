//! The client's side of `cairn resume` and `cairn replace`, with the progress of `--flush`.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use cairn_block::{ConfigError, ConfigKind};
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
    let answer = watched(server, verb, name, || left(server, name))?;
    pass_on(name, &answer)
}

/// Asks, and shows how much is left until the answer comes.
///
/// # Errors
/// There is no server, or it refuses.
pub fn watched<V>(
    server: &Client,
    verb: V,
    name: &str,
    left: impl Fn() -> Outcome<Left>,
) -> Outcome<V::Answer>
where
    V: Verb + Send + 'static,
    V::Answer: Send + 'static,
{
    let total = left()?;
    let answered = begin(server, verb);
    let mut progress = (total.bytes > 0).then(|| Progress::begin_drain(total));
    let mut last = total;
    loop {
        let answer = match answered.recv_timeout(TICK) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => {
                if let (Some(progress), Ok(left)) = (&mut progress, left()) {
                    progress.show(left);
                    last = left;
                }
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => Err(no_answer::<V>(name)),
        };
        if let Some(progress) = &mut progress {
            // If the new table is live already, it has no dirty bytes. A server that has ended
            // answers nothing.
            progress.finish(left().unwrap_or(last), ());
        }
        return answer;
    }
}

/// Asks in a thread, which waits for the answer. The end of this process closes the connection.
pub fn begin<V>(server: &Client, verb: V) -> Receiver<Outcome<V::Answer>>
where
    V: Verb + Send + 'static,
    V::Answer: Send + 'static,
{
    let (asker, (send, answered)) = (server.clone(), channel());
    std::thread::spawn(move || drop(send.send(asker.ask(&verb))));
    answered
}

/// The thread that asked has ended without an answer.
pub fn no_answer<V: Verb>(name: &str) -> ConfigError {
    refused(ConfigKind::System, name, V::METHOD, "no answer", "one")
}

/// The bytes that only the caches of a volume have.
fn left(server: &Client, name: &str) -> Outcome<Left> {
    let infos = server.ask(&VolumeInfo { name: Some(name.to_owned()) })?;
    let bytes = infos.iter().map(|info| info.dirty_bytes).sum();
    Ok(Left { blocks: bytes / 512, bytes })
}

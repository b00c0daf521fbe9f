//! The families of remote disks. `remote` is the URI of a table, without the query of an object:
//! that may be a signature.

use cairn_backends::RemoteFigures;

use super::{Counted, Families, add_traffic};

const REMOTE: Counted = [
    ("cairn_remote_operations", "Requests to the server of a remote disk that ended"),
    ("cairn_remote_bytes", "Bytes that the requests to a server which ended asked for"),
    ("cairn_remote_errors", "Requests to the server of a remote disk that failed"),
    (
        "cairn_remote_duration_seconds",
        "How long requests to a server took, the time included in which they waited for it",
    ),
];

/// What only some kinds of remote disk have: a count, its name and what it is.
type Count = (Option<u64>, &'static str, &'static str);

pub(super) fn add_remote(all: &mut Families, figures: &RemoteFigures) {
    let remote = || ("remote", figures.shown.clone());
    let (kind, state) = (figures.kind.name().to_owned(), figures.state.name().to_owned());
    let labels = [remote(), ("kind", kind), ("state", state)];
    all.gauge("cairn_remote_state_info", "The state of a remote disk", labels, 1);
    let bytes = figures.size.to_bytes();
    all.gauge("cairn_remote_size_bytes", "The size of a remote disk", [remote()], bytes);
    let help = "Failures that may have lost writes which the server had answered";
    all.counter("cairn_remote_losses", help, [remote()], figures.losses);
    let replay = figures.replay;
    let gauges: [Count; 3] = [
        (figures.connections, "cairn_remote_connections", "Connections to the server"),
        (
            replay.map(|it| it.held_bytes),
            "cairn_remote_replay_held_bytes",
            "Memory of writes that have no answer, or are kept until a flush",
        ),
        (
            replay.map(|it| it.limit_bytes),
            "cairn_remote_replay_limit_bytes",
            "How much of it there may be",
        ),
    ];
    for (value, name, help) in gauges {
        if let Some(value) = value {
            all.gauge(name, help, [remote()], value);
        }
    }
    let counters: [Count; 4] = [
        (
            figures.reconnects,
            "cairn_remote_reconnects",
            "Connections that were made after one was lost",
        ),
        (
            figures.retries,
            "cairn_remote_retries",
            "Requests that a lost connection, or a try that failed, left without an answer",
        ),
        (
            replay.map(|it| it.replayed_bytes),
            "cairn_remote_replayed_bytes",
            "Bytes that were written again after a connection was lost",
        ),
        (
            figures.fetched_bytes,
            "cairn_remote_fetched_bytes",
            "Bytes of an object that its server sent",
        ),
    ];
    for (value, name, help) in counters {
        if let Some(value) = value {
            all.counter(name, help, [remote()], value);
        }
    }
    add_traffic(all, &REMOTE, &[remote()], &figures.traffic);
}

//! [`RemoteInfo`]: what `info` answers of a remote disk.

use std::collections::BTreeMap;

use cairn_backends::RemoteFigures;
use cairn_block::{OPS, OpTraffic};
use serde::{Deserialize, Serialize};

/// A remote disk that a volume stands on. What its kind does not have is left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteInfo {
    /// Its URI as in the table, without the query of an object, which may be a signature.
    pub device: String,
    /// `nbd`, `rbd` or `object`.
    pub kind: String,
    /// `connected`, `reconnecting`, `unreachable`, `refused`, `fenced` or `changed`.
    pub state: String,
    /// Its size.
    pub size_bytes: u64,
    /// Failures that may have lost writes which the server had answered.
    pub losses: u64,
    /// Connections of now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connections: Option<u64>,
    /// Connections that were made after one was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reconnects: Option<u64>,
    /// Requests that a lost connection, or a try that failed, left without an answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retries: Option<u64>,
    /// Memory of writes that have no answer, or are kept until a flush.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_bytes: Option<u64>,
    /// How much of it there may be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held_limit_bytes: Option<u64>,
    /// Bytes that were written again after a connection was lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replayed_bytes: Option<u64>,
    /// Bytes of an object that its server sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fetched_bytes: Option<u64>,
    /// The requests to its server that ended, by the name of the operation; none of those that
    /// there were none of.
    pub ops: BTreeMap<String, RemoteOp>,
}

/// Requests of one operation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteOp {
    /// How many ended.
    pub requests: u64,
    /// How much they asked for.
    pub bytes: u64,
    /// How many failed.
    pub errors: u64,
    /// The time that half of them did not exceed: the bound of a bucket of the histogram. None
    /// beyond the last one.
    pub p50_ns: Option<u64>,
    /// The time that 99 of 100 did not exceed.
    pub p99_ns: Option<u64>,
}

impl From<&RemoteFigures> for RemoteInfo {
    fn from(figures: &RemoteFigures) -> RemoteInfo {
        let passed = OPS.into_iter().map(|op| (op, figures.traffic.of(op)));
        let ops = passed.filter(|(_, traffic)| traffic.count() > 0);
        RemoteInfo {
            device: figures.shown.clone(),
            kind: figures.kind.name().to_owned(),
            state: figures.state.name().to_owned(),
            size_bytes: figures.size.to_bytes(),
            losses: figures.losses,
            connections: figures.connections,
            reconnects: figures.reconnects,
            retries: figures.retries,
            held_bytes: figures.replay.map(|replay| replay.held_bytes),
            held_limit_bytes: figures.replay.map(|replay| replay.limit_bytes),
            replayed_bytes: figures.replay.map(|replay| replay.replayed_bytes),
            fetched_bytes: figures.fetched_bytes,
            ops: ops.map(|(op, traffic)| (op.name().to_owned(), traffic.into())).collect(),
        }
    }
}

impl From<&OpTraffic> for RemoteOp {
    fn from(traffic: &OpTraffic) -> RemoteOp {
        let nanos = |share| traffic.quantile(share).map(|time| time.as_nanos() as u64);
        RemoteOp {
            requests: traffic.count(),
            bytes: traffic.sectors.to_bytes(),
            errors: traffic.failed,
            p50_ns: nanos(0.5),
            p99_ns: nanos(0.99),
        }
    }
}

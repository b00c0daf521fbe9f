//! [`NbdDisk`]: an export of an NBD server as a disk.
//!
//! - `uri`: what the argument of a table line means. [`cairn_nbd::negotiation`], `connect`: a new
//!   connection.
//! - [`cairn_nbd::session`]: which request is sent when, and what a lost connection loses; the
//!   crash argument.
//! - `meta`: what shows after a lost connection whether another client has opened the export.
//! - `remote`, `link`, `lane`: the way of a request between the reactors and the connections.
//! - `channel`: the bytes of a connection, plain or under [TLS](cairn_tls).
//! - `send`: requests as bytes. `receive`, [`cairn_nbd::answers`]: what the bytes of a server mean.
//!
//! A flush that fails, or a connection that is lost, may lose writes that the server has answered:
//! the disk's failure count says so. Flushes, and writes with FUA, pass a [`FlushGate`] as those of
//! a file do.

mod channel;
mod connect;
mod lane;
mod link;
mod meta;
mod receive;
mod remote;
mod send;
mod uri;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use cairn_block::{
    ConfigError, ConfigKind, Disk, Env, Extent, ExtentKind, FailureCount, Flags, Flow, FlushGate,
    IoError, Limits, LocalFuture, MarkerPlace, Nature, Op, Request, RequestId, SectorCount,
    SectorRange, Segs, Shape,
};
use cairn_nbd::wire::TransmissionFlags;

use self::connect::connect_all;
pub use self::connect::{Connected, connect};
use self::meta::Meta;
pub(crate) use self::meta::unmark;
use self::remote::{Data, Owner, Remote};
pub use self::uri::{Place, Proof};
pub(crate) use self::uri::{Target, is_uri};
use crate::remote::{RemoteDisk, RemoteFigures, RemoteKind, ReplayFigures, value};
pub use cairn_nbd::negotiation::{Agreed, Wish};
use cairn_nbd::session::{Care, What};

/// How much is asked for in one status request: a server may have an extent for each sector.
const STATUS_BYTES: u64 = 64 << 20;

/// An export of a server.
pub struct NbdDisk {
    remote: Arc<Remote>,
    /// The table writes nothing, or the server takes no writes.
    read_only: bool,
}

impl NbdDisk {
    /// Connects to the server of a URI. Blocks the thread.
    ///
    /// # Errors
    /// It is no URI of NBD, there is no such server or export, or that is read-only and the URI
    /// says that it is written.
    pub(crate) fn open(
        uri: &str,
        read_only: bool,
        failures: Arc<FailureCount>,
    ) -> Result<NbdDisk, ConfigError> {
        let target = Target::of_device(uri)?;
        let connections = connect_all(&target, target.connections)?;
        let agreed = connections[0].agreed;
        let refuses_writes = agreed.flags.contains(TransmissionFlags::READ_ONLY);
        if refuses_writes && !read_only && target.replay.is_some() {
            let detail = "access: found a read-only export, expected a writable one, since \
                          'exclusive' or 'meta' is given";
            return Err(ConfigError::new(ConfigKind::Unsupported, uri, detail));
        }
        let read_only = read_only || refuses_writes;
        let meta = Meta::open(&target, read_only)?;
        let remote = Remote::new((target, meta), (agreed, connections), FlushGate::new(failures));
        Ok(NbdDisk { remote: Arc::new(remote), read_only })
    }

    fn offers(&self, flag: TransmissionFlags) -> bool {
        self.remote.agreed.flags.contains(flag)
    }

    /// Starts the task of a request that passes the gate.
    fn start_durable(&self, env: &Env, request: &Request) {
        let (id, op, range, flags) = (request.id(), request.op, request.range, request.flags);
        let bytes = if op == Op::Write { range.to_bytes() as usize } else { 0 };
        let segs = request.segs.slice(0, bytes);
        let has_fua = self.offers(TransmissionFlags::SEND_FUA);
        let (remote, env) = (self.remote.clone(), env.clone());
        let failures = remote.gate.failures().count();
        env.clone().spawn(async move {
            let flush = || async {
                let what = (What::Op(Op::Flush), range, Flags::empty());
                remote.ask(&env, what, |_| Data::None).await.map(drop)
            };
            let write = |is_fua| {
                let flags = if is_fua { flags | Flags::FUA } else { flags - Flags::FUA };
                let data = |is_home| data_of(id, &segs, is_home);
                let (remote, env) = (&remote, &env);
                async move { remote.ask(env, (What::Op(op), range, flags), data).await.map(drop) }
            };
            let result = match op {
                Op::Flush => remote.gate.flush(flush).await,
                _ if has_fua => remote.gate.durable_write(write).await,
                _ => match write(false).await {
                    Ok(()) => remote.gate.flush(flush).await,
                    failed => failed,
                },
            };
            // A connection may have been lost, with the write, before a flush that succeeded.
            let was_lost = remote.gate.failures().count() != failures;
            let lost = was_lost && op != Op::Flush && !has_fua && result.is_ok();
            env.complete(id, if lost { Err(IoError::IO) } else { result });
        });
    }
}

/// The data of a write: its own on the reactor of the connection, else a copy.
fn data_of(id: RequestId, segs: &Segs, is_home: bool) -> Data {
    match is_home {
        true => Data::Of(id),
        false if segs.bytes() > 0 => Data::Bytes(segs.to_vec()),
        false => Data::None,
    }
}

impl Drop for NbdDisk {
    /// The task of the connection says goodbye to the server.
    fn drop(&mut self) {
        self.remote.close();
    }
}

impl RemoteDisk for NbdDisk {
    fn kind(&self) -> RemoteKind {
        RemoteKind::Nbd
    }

    /// A URI of NBD has no password.
    fn figures(&self) -> RemoteFigures {
        let Remote { target, counts, .. } = &*self.remote;
        let replay = match self.remote.care() {
            Care::Keep(limit_bytes) => Some(ReplayFigures {
                held_bytes: value(&counts.held_bytes),
                limit_bytes,
                replayed_bytes: value(&counts.replayed_bytes),
            }),
            Care::Tell | Care::Nothing => None,
        };
        RemoteFigures {
            uri: target.uri.clone(),
            shown: target.uri.clone(),
            kind: RemoteKind::Nbd,
            state: counts.state(),
            is_silent: false,
            size: self.sectors(),
            connections: Some(value(&counts.connections)),
            reconnects: Some(value(&counts.reconnects)),
            retries: Some(value(&counts.retries)),
            replay,
            fetched_bytes: None,
            losses: self.failures(),
            traffic: counts.traffic(),
        }
    }
}

impl Disk for NbdDisk {
    fn name(&self) -> String {
        self.remote.target.uri.clone()
    }

    fn sectors(&self) -> SectorCount {
        SectorCount(self.remote.sectors.load(Ordering::Relaxed))
    }

    fn submit(&self, env: &Env, request: &mut Request) -> Flow {
        let is_volatile = self.offers(TransmissionFlags::SEND_FLUSH);
        match request.op {
            Op::Flush if !is_volatile => return Flow::Done,
            Op::Discard if !self.offers(TransmissionFlags::SEND_TRIM) => return Flow::Done,
            Op::WriteZeroes
                if request.flags.contains(Flags::FAST_ZERO)
                    && !self.offers(TransmissionFlags::SEND_FAST_ZERO) =>
            {
                return Flow::Failed(IoError::UNSUPPORTED);
            }
            Op::Flush => self.start_durable(env, request),
            op if op.is_write() && is_volatile && request.is_fua() => {
                self.start_durable(env, request);
            }
            op => {
                let id = request.id();
                let bytes = if op == Op::Write { request.range.to_bytes() as usize } else { 0 };
                let segs = &request.segs;
                let data = |is_home| match is_home {
                    true => Data::Of(id),
                    false => data_of(id, &segs.slice(0, bytes), false),
                };
                let flags = request.flags - Flags::FUA;
                let what = (What::Op(op), request.range, flags);
                let owner = if op == Op::Read { Owner::Read(id) } else { Owner::Request(id) };
                self.remote.send(env, what, data, owner);
            }
        }
        Flow::Queued
    }

    fn marker_place(&self) -> MarkerPlace<'_> {
        match (&self.remote.meta, self.read_only) {
            (Some(_), _) => MarkerPlace::Store(self),
            (None, true) => MarkerPlace::Needless,
            (None, false) => MarkerPlace::Nowhere,
        }
    }

    fn limits(&self) -> Limits {
        let agreed = &self.remote.agreed;
        let block = agreed.block_bytes.max(512);
        Limits {
            logical_block: block,
            physical_block: agreed.preferred_bytes.clamp(block, 64 << 10),
            io_min: block,
            io_opt: agreed.preferred_bytes.max(block),
            discard: self.offers(TransmissionFlags::SEND_TRIM),
            fast_zero: self.offers(TransmissionFlags::SEND_FAST_ZERO),
            read_only: self.read_only,
            stable_data: false,
        }
    }

    fn nature(&self) -> Nature {
        Nature {
            rotational: self.offers(TransmissionFlags::ROTATIONAL).then_some(true),
            volatile: self.offers(TransmissionFlags::SEND_FLUSH),
            shape: Shape::Unknown,
        }
    }

    fn extents<'a>(
        &'a self,
        env: &'a Env,
        range: SectorRange,
    ) -> LocalFuture<'a, Result<Vec<Extent>, IoError>> {
        let data = vec![Extent { count: range.count, kind: ExtentKind::Data }];
        if self.remote.agreed.allocation.is_none() {
            return Box::pin(std::future::ready(Ok(data)));
        }
        Box::pin(async move {
            let most = SectorCount::of_bytes(STATUS_BYTES);
            let range = SectorRange::new(range.start, range.count.min(most));
            let what = (What::Status, range, Flags::empty());
            let found = self.remote.ask(env, what, |_| Data::None).await?;
            let block = self.limits().logical_sectors().0;
            let is_whole = found.iter().all(|extent| extent.count.0.is_multiple_of(block));
            Ok(if found.is_empty() || !is_whole { data } else { found })
        })
    }

    fn failures(&self) -> u64 {
        self.remote.gate.failures().count()
    }

    fn failures_told(&self) -> u64 {
        self.remote.gate.failures().told()
    }

    fn acknowledge_failures(&self, upto: u64) {
        self.remote.gate.failures().acknowledge(upto);
    }
}

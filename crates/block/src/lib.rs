//! The heart of cairn: sectors, requests, disks, targets, tables and mapped devices.
//!
//! Start with [`Disk`] (the one lower interface) and [`Target`] (a mapping policy), then
//! [`Request`] and the verdict loop in `engine`. [`Env`] is the world a target sees;
//! [`MappedDevice`] owns tables and the verbs suspend, load and resume.
//!
//! Deliberately absent: files, sockets, threads, clocks. This crate does no I/O; it is driven
//! by a reactor, real or simulated, which fills in [`World`].

#![deny(unsafe_code)]

mod biased_lock;
pub mod buf;
mod call_off;
mod calls;
mod cells;
mod check;
mod claiming;
mod claims;
mod construct;
mod copier;
mod counters;
mod crash_log;
mod device;
pub mod dirty_marker;
mod disk;
mod engine;
mod env;
mod error;
mod events;
mod failure_cursor;
mod failures;
mod flush_gate;
mod ids;
pub mod invariants;
mod lasting;
mod line_traffic;
mod local;
#[cfg(all(feature = "lock-stats", not(shuttle)))]
pub mod lock_stats;
mod log_limit;
mod loss_log;
mod messages;
pub mod mutants;
mod nature;
mod op;
mod orphans;
mod read_only;
mod registry;
mod report;
mod request;
mod slots;
pub mod sync;
mod table;
mod target;
mod task_group;
mod throttle;
mod traffic;
mod units;
mod wait;
mod zone_maps;

pub use biased_lock::{BiasedLock, Exclusive};
pub use buf::{BUF_ALIGN, Buf, BufPool, HugeWords, Segs};
pub use call_off::CallOff;
pub use calls::Call;
pub use cells::{CellGuard, CellMode, Cells};
pub use claiming::{Claim, Claimant, Claimed};
pub use claims::ClaimKind;
pub use construct::{Ctor, TableContext, TargetType, TargetTypes};
pub use copier::{Copier, CopyData, CopyGrant, CopyJob, CopyPiece, CopyTimes};
pub use counters::Counters;
pub use crash_log::{
    Base, Content, CrashLog, CrashLogs, CrashMemory, KeptLogs, KeptMemory, Left, Record,
};
pub use device::{MappedDevice, NewTable, Resumed};
pub use disk::{
    CopyError, Disk, Extent, ExtentKind, Flow, Identity, Limits, LocalFuture, MarkerPlace,
    MarkerStore,
};
pub use env::{Env, Io, IoFuture, Job, Mail, Post, Sleep, Tasks, World, yield_once};
pub use error::{ConfigError, ConfigKind, ErrorKind, IoError, IoResult};
pub use events::Events;
pub use failure_cursor::FailureCursor;
pub use failures::FailureCount;
pub use flush_gate::FlushGate;
pub use ids::{DeviceId, ReactorId, RequestId, StreamId};
pub use lasting::{LogPlace, failures_at_opening, failures_beneath};
pub use log_limit::{LOG_INTERVAL, LogLimit};
pub use loss_log::{LossLog, Receipt};
pub use nature::{Nature, Shape};
pub use op::{Flags, Op};
pub use orphans::{Fate, Ranges, claimed_by_line, fate_of_claimed};
pub use read_only::read_only_parts;
pub use registry::{Opener, Registry};
pub use report::{Attribute, Field, Report, Unit, Value};
pub use request::{Client, MAX_DEPTH, Request};
pub use table::{Line, Table, TableLine, escape_word, refuse_marked, take_unmarked, unescape_word};
pub use target::{Dirty, EndIo, MessageError, SuspendMode, Target, Verdict};
pub use task_group::TaskGroup;
pub use throttle::{
    Burst, Direction, Passage, Rate, Rates, TURN_BYTES, Throttle, ThrottleLimits, Turn, Waited,
};
pub use traffic::{DeviceTraffic, LineTraffic, OPS, OpTraffic, SharedTraffic, Traffic, quantile};
pub use units::{SECTOR_BYTES, Sector, SectorCount, SectorRange, Time};
pub use wait::{until, until_some};
pub use zone_maps::{ZoneMaps, keep_zones};

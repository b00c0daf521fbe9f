//! A deterministic world: virtual time, drives that lose and tear writes, crash and fault
//! injection.
//!
//! Start with [`SimWorld`]: reactors stepped by one thread under a seeded scheduler. Add
//! [`SimDrive`]s, send requests with a [`Workload`], check what was read with a [`History`], and
//! let a [`Campaign`](campaign::Campaign) cut the power, or kill the process, at any write.
//!
//! The lab has worlds of events ([`SimWorld::of_events`]) with drives of another kind: [`drives`]
//! are timing models of real ones, and a drive may remember less than its contents ([`Contents`]).
//!
//! Promise: the same seed makes the same run, event for event. Therefore nothing here reads a
//! clock, starts a thread, or iterates in an order that does not follow from the seed.

pub mod campaign;
mod cpu;
mod drive;
pub mod drives;
mod faults;
mod history;
mod image;
mod markers;
mod mechanics;
mod models;
mod opener;
mod post;
mod spindle;
mod stamp;
mod workload;
mod world;

pub use cpu::Prices;
pub use drive::{Contents, DriveModel, DriveOptions, Remote, SimDrive, TimedOptions};
pub use faults::{Effect, Fault, FaultId, Faults, OpSet};
pub use history::{ClientId, History, OpTicket, Violation};
pub use image::Image;
pub use markers::Markers;
pub use mechanics::{Cut, CutWhen};
pub use opener::SimOpener;
pub use spindle::Spindle;
pub use stamp::Content;
pub use workload::{Connection, Mix, Running, Workload};
pub use world::{SimWorld, Stopped};

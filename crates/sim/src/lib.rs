//! A deterministic world: virtual time, drives that lose and tear, crash and fault injection.
//!
//! Start with [`SimWorld`]: reactors stepped by one thread under a seeded scheduler. Give it
//! [`SimDrive`]s, drive them with a [`Workload`], let a [`History`] judge what was read, and let
//! a [`Campaign`](campaign::Campaign) cut the power, or kill the process, at every write.
//!
//! Promise: the same seed makes the same run, event for event. Therefore nothing here reads a
//! clock, starts a thread, or iterates over anything without an order.

pub mod campaign;
mod drive;
mod faults;
mod history;
mod image;
mod mechanics;
mod opener;
mod post;
mod spindle;
mod stamp;
mod workload;
mod world;

pub use drive::{DriveModel, DriveOptions, SimDrive};
pub use faults::{Effect, Fault, FaultId, Faults, OpSet};
pub use history::{ClientId, History, OpTicket, Violation};
pub use image::Image;
pub use mechanics::{Cut, CutWhen};
pub use opener::SimOpener;
pub use spindle::Spindle;
pub use stamp::Content;
pub use workload::{Connection, Mix, Running, Workload};
pub use world::{SimWorld, Stopped};

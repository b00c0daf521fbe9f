//! The store in the simulated world.

mod basics;
mod comparing;
mod crashes;
mod damage;
mod faults;
pub(super) mod fixture;
mod golden;
mod properties;
mod readers;

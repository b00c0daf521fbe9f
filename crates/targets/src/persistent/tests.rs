//! The store in the simulated world.

mod basics;
mod bed;
mod comparing;
mod crashes;
mod damage;
mod faults;
mod golden;
mod properties;
mod readers;

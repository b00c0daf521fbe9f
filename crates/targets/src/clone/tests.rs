//! The target in the simulated world.

mod basics;
mod fixture;
mod golden;
mod killed;
mod losses;

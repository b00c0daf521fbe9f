//! The target in the simulated world.

mod basics;
mod fixture;
mod killed;
mod losses;
mod refused;
mod shown;
mod space;

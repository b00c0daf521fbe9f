//! The store in the simulated world.

mod basics;
mod bed;
mod crashes;
mod damage;
mod golden;
mod properties;

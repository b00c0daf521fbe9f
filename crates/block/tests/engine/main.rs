//! The engine in the simulated world: every verdict, nested stacks, suspend and resume under
//! load, the contract between layers, and the bounded helpers.

mod bounded;
mod contract;
mod probe;
mod queue;
mod split;
mod suspend;

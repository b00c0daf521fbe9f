//! The engine in the simulated world: every verdict, nested stacks, suspend and resume under
//! load, the contract between layers, opening, and the bounded helpers.

// Clippy takes the helpers for test code only if it is told so.
#[cfg(test)]
mod bounded;
#[cfg(test)]
mod contract;
#[cfg(test)]
mod failures;
#[cfg(test)]
mod kept_counts;
#[cfg(test)]
mod opening;
#[cfg(test)]
mod probe;
#[cfg(test)]
mod queue;
#[cfg(test)]
mod read_only;
#[cfg(test)]
mod split;
#[cfg(test)]
mod straight;
#[cfg(test)]
mod suspend;
#[cfg(test)]
mod throttle;
#[cfg(test)]
mod traffic;

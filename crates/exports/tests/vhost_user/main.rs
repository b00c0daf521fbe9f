//! The vhost-user server over real reactors and sockets: a driver of the tests, which can also
//! break the protocol, and one that others wrote.

#[cfg(test)]
#[path = "../nbd/disk.rs"]
#[expect(dead_code, reason = "what the other tests of this disk look at")]
mod disk;
#[cfg(test)]
mod foreign;
#[cfg(test)]
mod handover;
#[cfg(test)]
mod hostile;
#[cfg(test)]
mod packed;
#[cfg(test)]
mod requests;
#[cfg(test)]
mod sessions;
#[cfg(test)]
mod throttle;
#[cfg(test)]
mod world;

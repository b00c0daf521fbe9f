//! The NBD server over real reactors and sockets: foreign clients, and a client of the tests that
//! can also break the protocol.

#[cfg(test)]
mod disk;
#[cfg(test)]
mod extended;
#[cfg(test)]
mod foreign;
#[cfg(test)]
mod handover;
#[cfg(test)]
mod limits;
#[cfg(test)]
mod lost;
#[cfg(test)]
mod protocol;
#[cfg(test)]
mod throttle;
#[cfg(test)]
mod tls;
#[cfg(test)]
mod tls_client;
#[cfg(test)]
mod unaligned;
#[cfg(test)]
mod world;

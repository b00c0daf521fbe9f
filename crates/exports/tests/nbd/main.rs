//! The NBD server over real reactors and sockets: foreign clients, and one of our own that can
//! say what no proper client would.

#[cfg(test)]
mod client;
#[cfg(test)]
mod disk;
#[cfg(test)]
mod foreign;
#[cfg(test)]
mod limits;
#[cfg(test)]
mod lost;
#[cfg(test)]
mod protocol;
#[cfg(test)]
mod ragged;
#[cfg(test)]
mod world;

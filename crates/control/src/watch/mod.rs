//! What a person watches while a server works: the figures of its volumes, and their events.
//!
//! [`figures`] are the counts and levels of one moment. [`rates`] come from two of them: the client
//! that shows them keeps the earlier one, and the server keeps nothing. [`events`] come from two
//! sets of [`events::Marks`] in the same way.

pub mod events;
pub mod figures;
pub mod rates;

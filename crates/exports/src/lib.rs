//! Protocol servers: wire to request to wire.

pub mod nbd;
pub mod occupied;

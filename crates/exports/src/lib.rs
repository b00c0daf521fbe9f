//! Protocol servers: wire to request to wire.

//! Protocol servers: each decodes a wire protocol into requests to disks and encodes the replies.

pub mod nbd;
pub mod occupied;

//! Protocol servers: each decodes a wire protocol into requests to disks and encodes the replies.
//! What is the same for every protocol is in [`front`].

pub mod front;
mod listener;
pub mod nbd;
pub mod occupied;
pub mod unix_socket;
pub mod vhost_user;

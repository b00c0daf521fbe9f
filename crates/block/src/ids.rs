//! What names reactors, devices, requests and streams inside a world.

/// Names a mapped device inside a world.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct DeviceId(pub(crate) u32);

/// Which reactor a thread or request belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReactorId(pub u16);

/// Names a request from outside its reactor; a stale id finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RequestId {
    /// The reactor that owns the request.
    pub reactor: ReactorId,
    pub(crate) slot: u32,
    pub(crate) generation: u32,
}

/// The source of a stream of requests, such as a client connection: requests of one stream that
/// follow each other on the disk are one sequential read or write. The default is no stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct StreamId(pub u32);

//! The name of this host, for the users of others.

/// The name of the system, and the begin of its machine id: two machines may have one name. It has
/// no white space.
pub fn host_name() -> String {
    let name = rustix::system::uname().nodename().to_string_lossy().replace(' ', "_");
    let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    match machine.trim().get(..8) {
        Some(id) => format!("{name}/{id}"),
        None => name,
    }
}

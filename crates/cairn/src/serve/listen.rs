//! Addresses to listen on, and how a person attaches to them.

use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::Path;

use cairn_exports::nbd::ListenAddress;
use cairn_outcome::failure::{Outcome, wrong};

/// Parses `unix:PATH`, `tcp:PORT` (loopback) or `tcp:HOST:PORT`. A relative path begins at `base`.
///
/// # Errors
/// It is none of these, or the host has no address.
pub fn parse(text: &str, base: &Path) -> Outcome<ListenAddress> {
    let refused = || wrong(text, "listen", format!("'{text}'"), "unix:PATH or tcp:HOST:PORT");
    match text.split_once(':') {
        Some(("unix", path)) if !path.is_empty() => Ok(ListenAddress::Unix(base.join(path))),
        Some(("tcp", rest)) => tcp(rest).map(ListenAddress::Tcp).ok_or_else(refused),
        _ => Err(refused()),
    }
}

fn tcp(rest: &str) -> Option<SocketAddr> {
    let port_only = rest.strip_prefix(':').unwrap_or(rest);
    if let Ok(port) = port_only.parse::<u16>() {
        return Some((Ipv4Addr::LOCALHOST, port).into());
    }
    rest.to_socket_addrs().ok()?.next()
}

/// One line each on attaching an export with nbdcopy, qemu and nbd-client.
pub fn attach_lines(address: &ListenAddress, export: &str, uri: &str) -> [String; 3] {
    let reach = match address {
        ListenAddress::Unix(path) => {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            format!("-unix '{}'", path.display())
        }
        ListenAddress::Tcp(address) => format!("{} {}", address.ip(), address.port()),
    };
    [
        format!("nbdcopy '{uri}' copy.img"),
        format!("qemu-system-x86_64 -drive 'file={uri},format=raw,if=virtio'"),
        format!("nbd-client {reach} -N '{export}' /dev/nbd0"),
    ]
}

#[cfg(test)]
mod tests {
    use super::{attach_lines, parse};
    use cairn_exports::nbd::ListenAddress;
    use std::path::Path;

    #[test]
    fn tcp_is_loopback_unless_an_address_is_named() {
        let parse = |text| parse(text, Path::new("/run"));
        let tcp = |text: &str| ListenAddress::Tcp(text.parse().unwrap());
        assert_eq!(parse("tcp:10809").unwrap(), tcp("127.0.0.1:10809"));
        assert_eq!(parse("tcp::10809").unwrap(), tcp("127.0.0.1:10809"));
        assert_eq!(parse("tcp:0.0.0.0:1").unwrap(), tcp("0.0.0.0:1"));
        assert_eq!(parse("tcp:[::1]:1").unwrap(), tcp("[::1]:1"));
        assert_eq!(parse("unix:s").unwrap(), ListenAddress::Unix("/run/s".into()));
        for text in ["", "unix:", "s", "tcp:", "tcp:x", "tcp:1.2.3.4:99999"] {
            assert!(parse(text).unwrap_err().to_string().contains("expected unix:PATH"), "{text}");
        }
    }

    #[test]
    fn attaching_names_the_socket_and_the_export() {
        let address = ListenAddress::Unix("/run/s".into());
        let lines = attach_lines(&address, "vm", "nbd+unix:///vm?socket=/run/s");
        assert_eq!(lines[0], "nbdcopy 'nbd+unix:///vm?socket=/run/s' copy.img");
        assert_eq!(lines[2], "nbd-client -unix '/run/s' -N 'vm' /dev/nbd0");
    }
}

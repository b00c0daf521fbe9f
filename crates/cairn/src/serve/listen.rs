//! Addresses to listen on, who may connect there, and how a person attaches to them.
//!
//! A unix socket is written `PATH[,mode=MODE][,group=GROUP]`, also where vhost-user and the control
//! socket have theirs. A comma in a path is doubled.

use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use cairn_control::sockets::NBD_NAME;
use cairn_exports::nbd::ListenAddress;
use cairn_exports::unix_socket::SocketRights;
use cairn_outcome::failure::{Outcome, system, wrong};
use nix::unistd::Group;

use super::tls::Proof;

/// The rights of a group that is named without a mode.
const GROUP_MODE: u32 = 0o660;

/// An address and the rights of its socket, if it is a unix socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listen {
    /// Where.
    pub address: ListenAddress,
    /// Who may connect.
    pub rights: SocketRights,
}

impl Listen {
    /// The usual socket of a folder that only this user can enter.
    pub fn beside(folder: &Path) -> Listen {
        let address = ListenAddress::Unix(folder.join(NBD_NAME));
        Listen { address, rights: SocketRights::default() }
    }
}

/// Parses `unix:PATH`, `tcp:PORT` (loopback) or `tcp:HOST:PORT`. A relative path begins at `base`.
///
/// # Errors
/// It is none of these, the host has no address, or there is no such group.
pub fn parse(text: &str, base: &Path) -> Outcome<Listen> {
    let expected = "unix:PATH[,mode=MODE][,group=GROUP] or tcp:HOST:PORT";
    let refused = || wrong(text, "listen", format!("'{text}'"), expected);
    match text.split_once(':') {
        Some(("unix", path)) if !path.is_empty() => {
            let (path, rights) = unix(path, "listen")?;
            Ok(Listen { address: ListenAddress::Unix(base.join(path)), rights })
        }
        Some(("tcp", rest)) => {
            let address = tcp(rest).map(ListenAddress::Tcp).ok_or_else(refused)?;
            Ok(Listen { address, rights: SocketRights::default() })
        }
        _ => Err(refused()),
    }
}

/// Parses the control socket: `PATH[,mode=MODE][,group=GROUP]`. Without rights its owner alone may
/// connect. A relative path begins at `base`.
///
/// # Errors
/// A word after the path makes no sense.
pub fn control(path: &Path, base: &Path) -> Outcome<(PathBuf, SocketRights)> {
    // What is not UTF-8 is nothing but a path.
    let Some(text) = path.to_str() else { return Ok((base.join(path), SocketRights::OWNER)) };
    let (path, rights) = unix(text, "control")?;
    let mode = rights.mode.or(SocketRights::OWNER.mode);
    Ok((base.join(path), SocketRights { mode, ..rights }))
}

fn unix(text: &str, field: &str) -> Outcome<(PathBuf, SocketRights)> {
    let mut words = words(text).into_iter();
    let path = words.next().filter(|path| !path.is_empty());
    let expected = "PATH[,mode=MODE][,group=GROUP] (a comma in PATH is doubled)";
    let Some(path) = path else { return Err(wrong(text, field, "no path", expected)) };
    let mut rights = SocketRights::default();
    for word in words {
        match word.split_once('=') {
            Some((key, value)) if right(&mut rights, &path, key, value)? => {}
            _ => return Err(wrong(path, field, format!("'{word}'"), expected)),
        }
    }
    Ok((path.into(), with_mode(rights)))
}

/// Splits at the commas that stand alone; two of them are one in a word.
pub fn words(text: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut rest = text.chars().peekable();
    while let Some(char) = rest.next() {
        let is_end = char == ',' && rest.next_if_eq(&',').is_none();
        match words.last_mut() {
            Some(word) if !is_end => word.push(char),
            _ => words.push(String::new()),
        }
    }
    words
}

/// Reads `mode` or `group` of the socket at `path` into `rights`; false if the key is another one.
///
/// # Errors
/// The value makes no sense.
pub fn right(rights: &mut SocketRights, path: &str, key: &str, value: &str) -> Outcome<bool> {
    match key {
        "mode" => rights.mode = Some(mode(path, value)?),
        "group" => rights.group = Some(group(path, value)?),
        _ => return Ok(false),
    }
    Ok(true)
}

/// Lets a group connect that is named without a mode.
pub fn with_mode(rights: SocketRights) -> SocketRights {
    SocketRights { mode: rights.mode.or(rights.group.map(|_| GROUP_MODE)), ..rights }
}

fn mode(path: &str, text: &str) -> Outcome<u32> {
    let is_octal = !text.is_empty() && text.bytes().all(|digit| (b'0'..=b'7').contains(&digit));
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| is_octal && *mode <= 0o777);
    mode.ok_or_else(|| wrong(path, "mode", format!("'{text}'"), "an octal number from 0 to 0777"))
}

fn group(path: &str, text: &str) -> Outcome<u32> {
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    match Group::from_name(text) {
        Ok(Some(group)) => Ok(group.gid.as_raw()),
        Ok(None) => {
            Err(wrong(path, "group", format!("'{text}'"), "the name or number of a group here"))
        }
        Err(error) => Err(system(path, &format!("look up the group '{text}'"), error.into())),
    }
}

fn tcp(rest: &str) -> Option<SocketAddr> {
    let port_only = rest.strip_prefix(':').unwrap_or(rest);
    if let Ok(port) = port_only.parse::<u16>() {
        return Some((Ipv4Addr::LOCALHOST, port).into());
    }
    rest.to_socket_addrs().ok()?.next()
}

/// One line each on attaching an export with nbdcopy, qemu and nbd-client. Over TLS they need the
/// client's certificates, in a folder DIR, or its NAME and key, in DIR/keys.psk, which nbd-client
/// cannot use.
pub fn attach_lines(
    address: &ListenAddress,
    export: &str,
    uri: &str,
    proof: Option<Proof>,
) -> Vec<String> {
    let (reach, server) = match address {
        ListenAddress::Unix(path) => {
            let path = std::path::absolute(path).unwrap_or_else(|_| path.clone());
            let path = path.display();
            (format!("-unix '{path}'"), format!("type=unix,file.server.path={path}"))
        }
        ListenAddress::Tcp(address) => {
            let (host, port) = (address.ip(), address.port());
            let server = format!("type=inet,file.server.host={host},file.server.port={port}");
            (format!("{host} {port}"), server)
        }
    };
    let more = if uri.contains('?') { '&' } else { '?' };
    let qemu = |credentials: &str| {
        format!(
            "qemu-system-x86_64 -object {credentials},endpoint=client -drive 'file.driver=nbd,\
             file.server.{server},file.export={export},file.tls-creds=tls,format=raw,if=virtio'"
        )
    };
    match proof {
        None => vec![
            format!("nbdcopy '{uri}' copy.img"),
            format!("qemu-system-x86_64 -drive 'file={uri},format=raw,if=virtio'"),
            format!("nbd-client {reach} -N '{export}' /dev/nbd0"),
        ],
        Some(Proof::Certificates) => vec![
            format!("nbdcopy '{uri}{more}tls-certificates=DIR' copy.img"),
            qemu("tls-creds-x509,id=tls,dir=DIR"),
            format!(
                "nbd-client {reach} -N '{export}' -cacertfile DIR/ca-cert.pem \
                 -certfile DIR/client-cert.pem -keyfile DIR/client-key.pem /dev/nbd0"
            ),
        ],
        Some(Proof::Keys) => {
            let named = uri.replacen("://", "://NAME@", 1);
            vec![
                format!("nbdcopy '{named}{more}tls-psk-file=DIR/keys.psk' copy.img"),
                qemu("tls-creds-psk,id=tls,dir=DIR,username=NAME"),
            ]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Listen, Proof, attach_lines, control, parse, words};
    use cairn_exports::nbd::ListenAddress;
    use cairn_exports::unix_socket::SocketRights;
    use std::path::Path;

    #[test]
    fn tcp_is_loopback_unless_an_address_is_named() {
        let parse = |text| parse(text, Path::new("/run")).map(|listen| listen.address);
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
    fn a_unix_socket_has_a_mode_and_a_group() {
        let listen = |path: &str, mode, group| Listen {
            address: ListenAddress::Unix(path.into()),
            rights: SocketRights { mode, group },
        };
        let parse = |text| parse(text, Path::new("/run"));
        assert_eq!(parse("unix:s").unwrap(), listen("/run/s", None, None));
        assert_eq!(parse("unix:/s,mode=0660").unwrap(), listen("/s", Some(0o660), None));
        assert_eq!(parse("unix:/s,group=7").unwrap(), listen("/s", Some(0o660), Some(7)));
        let both = parse("unix:/a,,b,group=root,mode=777").unwrap();
        assert_eq!(both, listen("/a,b", Some(0o777), Some(0)));
    }

    #[test]
    fn rights_that_make_no_sense_are_refused_on_one_line() {
        let cases = [
            ("mode=", "/s: mode: found '', expected an octal number from 0 to 0777"),
            ("mode=0888", "/s: mode: found '0888', expected an octal"),
            ("mode=+7", "/s: mode: found '+7', expected an octal"),
            ("mode=1777", "/s: mode: found '1777', expected an octal"),
            ("group=no such", "/s: group: found 'no such', expected the name or number of a"),
            ("user=root", "/s: listen: found 'user=root', expected PATH[,mode=MODE]"),
            ("0660", "/s: listen: found '0660', expected PATH[,mode=MODE]"),
        ];
        for (words, expected) in cases {
            let line = parse(&format!("unix:/s,{words}"), Path::new("")).unwrap_err().to_string();
            assert!(line.starts_with(expected) && !line.contains('\n'), "{line}");
        }
    }

    #[test]
    fn the_control_socket_is_its_owners_unless_a_right_is_given() {
        let rights = |text| control(Path::new(text), Path::new("")).unwrap().1;
        assert_eq!(rights("/c"), SocketRights::OWNER);
        assert_eq!(rights("/c,group=0"), SocketRights { mode: Some(0o660), group: Some(0) });
        assert!(control(Path::new("/c,rwx"), Path::new("")).is_err());
    }

    #[test]
    fn commas_separate_words_unless_they_are_doubled() {
        assert_eq!(words("a,b=c"), ["a", "b=c"]);
        assert_eq!(words("a,,b,c"), ["a,b", "c"]);
        assert_eq!(words("a,,,b"), ["a,", "b"]);
        assert_eq!(words(""), [""]);
    }

    #[test]
    fn attaching_names_the_socket_and_the_export() {
        let address = ListenAddress::Unix("/run/s".into());
        let lines = attach_lines(&address, "vm", "nbd+unix:///vm?socket=/run/s", None);
        assert_eq!(lines[0], "nbdcopy 'nbd+unix:///vm?socket=/run/s' copy.img");
        assert_eq!(lines[2], "nbd-client -unix '/run/s' -N 'vm' /dev/nbd0");
        let address = ListenAddress::Tcp("127.0.0.1:7".parse().unwrap());
        let lines =
            attach_lines(&address, "vm", "nbds://127.0.0.1:7/vm", Some(Proof::Certificates));
        assert_eq!(lines[0], "nbdcopy 'nbds://127.0.0.1:7/vm?tls-certificates=DIR' copy.img");
        assert!(lines[1].contains("file.server.host=127.0.0.1,file.server.port=7,file.export=vm,"));
        let lines = attach_lines(&address, "vm", "nbds://127.0.0.1:7/vm", Some(Proof::Keys));
        let expected = "nbdcopy 'nbds://NAME@127.0.0.1:7/vm?tls-psk-file=DIR/keys.psk' copy.img";
        assert_eq!((lines.len(), lines[0].as_str()), (2, expected));
        assert!(lines[1].contains("-object tls-creds-psk,id=tls,dir=DIR,username=NAME,endpoint="));
    }
}

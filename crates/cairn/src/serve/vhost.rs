//! Sockets of vhost-user-blk: where the options and the TOML file put them.

use std::path::{Path, PathBuf};

use cairn_control::exports::VhostSocket;
use cairn_exports::unix_socket::SocketRights;
use cairn_exports::vhost_user::QUEUES_MAX;
use cairn_outcome::failure::{Outcome, wrong};

use super::listen::{right, with_mode, words};

/// What an export by this protocol begins with: in `--export`, and in the TOML file.
const OPTION: &str = "vhost-user-blk:";
const KEY: &str = "vhost-user:";

/// The queues of an export that says nothing: enough for large guests; one that has fewer
/// processors uses fewer.
const QUEUES: u16 = 16;

/// A socket whose export may not be named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    path: PathBuf,
    rights: SocketRights,
    queues: u16,
    export: Option<String>,
}

impl Wanted {
    /// Parses `vhost-user-blk:PATH[,num-queues=N][,name=EXPORT][,mode=MODE][,group=GROUP]`; none if
    /// it is no such export.
    ///
    /// # Errors
    /// The path is missing, or an option is unknown or has a value that makes no sense.
    pub fn parse(text: &str) -> Option<Outcome<Wanted>> {
        text.strip_prefix(OPTION).map(Wanted::parse_rest)
    }

    fn parse_rest(text: &str) -> Outcome<Wanted> {
        let expected = "vhost-user-blk:PATH[,num-queues=N][,name=EXPORT][,mode=MODE][,group=GROUP]";
        let mut words = words(text).into_iter();
        let path = words.next().filter(|path| !path.is_empty());
        let Some(path) = path else { return Err(wrong("", "--export", "no path", expected)) };
        let rights = SocketRights::default();
        let mut wanted = Wanted { path: path.clone().into(), rights, queues: QUEUES, export: None };
        for word in words {
            match word.split_once('=') {
                Some(("num-queues", count)) => wanted.queues = queues(&path, count)?,
                Some(("name", name)) => wanted.export = Some(name.to_owned()),
                Some((key, value)) if right(&mut wanted.rights, &path, key, value)? => {}
                _ => return Err(wrong(path, "--export", format!("'{word}'"), expected)),
            }
        }
        Ok(Wanted { rights: with_mode(wanted.rights), ..wanted })
    }

    /// The socket, of `default` if it names no export.
    ///
    /// # Errors
    /// It has no export.
    pub fn judge(self, default: Option<&str>) -> Outcome<VhostSocket> {
        let Wanted { path, rights, queues, export } = self;
        match export.or_else(|| default.map(str::to_owned)) {
            Some(export) => Ok(VhostSocket { export, path, rights, queues }),
            None => {
                let shown = path.display().to_string();
                let expected = "name=EXPORT: there is not exactly one volume";
                Err(wrong(shown, "--export", "no export", expected))
            }
        }
    }
}

/// The socket of a TOML file's export: `vhost-user:PATH[,mode=MODE][,group=GROUP]`, relative to
/// `base`.
///
/// # Errors
/// It is none.
pub fn of_file(
    export: &str,
    listen: &str,
    count: Option<u16>,
    base: &Path,
) -> Outcome<VhostSocket> {
    let refused = |found: &str| {
        let expected = "vhost-user:PATH[,mode=MODE][,group=GROUP]";
        wrong(format!("export '{export}'"), "listen", format!("'{found}'"), expected)
    };
    let mut words = listen.strip_prefix(KEY).map(words).unwrap_or_default().into_iter();
    let path = words.next().filter(|path| !path.is_empty()).ok_or_else(|| refused(listen))?;
    let mut rights = SocketRights::default();
    for word in words {
        match word.split_once('=') {
            Some((key, value)) if right(&mut rights, &path, key, value)? => {}
            _ => return Err(refused(&word)),
        }
    }
    let queues = count.map_or(Ok(QUEUES), |count| queues(&path, &count.to_string()))?;
    let (export, rights) = (export.to_owned(), with_mode(rights));
    Ok(VhostSocket { export, path: base.join(path), rights, queues })
}

/// An export has one socket: another one would never be served.
///
/// # Errors
/// An export is named twice.
pub fn refuse_twice(sockets: &[VhostSocket]) -> Outcome<()> {
    for (index, socket) in sockets.iter().enumerate() {
        let Some(other) = sockets[..index].iter().find(|other| other.export == socket.export)
        else {
            continue;
        };
        let found = format!("export '{}', which {} has", socket.export, other.path.display());
        let path = socket.path.display().to_string();
        return Err(wrong(path, "vhost-user socket", found, "an export without one"));
    }
    Ok(())
}

fn queues(path: &str, count: &str) -> Outcome<u16> {
    let queues = count.parse().ok().filter(|queues| (1..=QUEUES_MAX).contains(queues));
    queues.ok_or_else(|| wrong(path, "num-queues", format!("'{count}'"), "1 to 64"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use cairn_control::exports::VhostSocket;
    use cairn_exports::unix_socket::SocketRights;

    use super::{Wanted, of_file, refuse_twice};

    #[test]
    fn an_export_of_the_command_line_has_a_path_and_options() {
        let parse = |text| Wanted::parse(text).unwrap();
        let socket = |export: &str, queues| VhostSocket {
            export: export.to_owned(),
            path: "/run/a.sock".into(),
            rights: SocketRights::default(),
            queues,
        };
        let plain = parse("vhost-user-blk:/run/a.sock").unwrap();
        assert_eq!(plain.clone().judge(Some("vm")).unwrap(), socket("vm", 16));
        assert!(plain.judge(None).unwrap_err().to_string().contains("name=EXPORT"));
        let named = parse("vhost-user-blk:/run/a.sock,num-queues=4,name=b").unwrap();
        assert_eq!(named.judge(Some("vm")).unwrap(), socket("b", 4));
        let open = parse("vhost-user-blk:/run/a.sock,mode=0666,name=b,group=7").unwrap();
        let rights = SocketRights { mode: Some(0o666), group: Some(7) };
        assert_eq!(open.judge(None).unwrap(), VhostSocket { rights, ..socket("b", 16) });
        assert!(Wanted::parse("vm").is_none());
    }

    #[test]
    fn an_export_that_makes_no_sense_is_refused() {
        for text in [
            "",
            ",num-queues=1",
            "s,x=1",
            "s,num-queues=0",
            "s,num-queues=65",
            "s,name",
            "s,mode=9",
        ] {
            let refused = Wanted::parse(&format!("vhost-user-blk:{text}")).unwrap();
            assert!(refused.unwrap_err().to_string().contains("expected"), "{text}");
        }
    }

    #[test]
    fn an_export_has_one_socket() {
        let socket = |export, path| of_file(export, path, None, Path::new("/srv")).unwrap();
        let both = [socket("a", "vhost-user:1"), socket("b", "vhost-user:2")];
        refuse_twice(&both).unwrap();
        let [first, second] = both;
        let refused = refuse_twice(&[first, second, socket("a", "vhost-user:3")]).unwrap_err();
        let line = refused.to_string();
        assert!(
            line.contains("/srv/3: vhost-user socket: found export 'a', which /srv/1 has"),
            "{line}"
        );
    }

    #[test]
    fn a_socket_of_the_file_is_relative_to_it() {
        let socket = of_file("vm", "vhost-user:a.sock", Some(2), Path::new("/srv")).unwrap();
        let path = "/srv/a.sock".into();
        let (export, rights) = ("vm".to_owned(), SocketRights::default());
        assert_eq!(socket, VhostSocket { export, path, rights, queues: 2 });
        let open = of_file("vm", "vhost-user:a,mode=0666", None, Path::new("/")).unwrap();
        assert_eq!(open.rights.mode, Some(0o666));
        let queues = Some(0);
        for (listen, queues) in [
            ("unix:a", None),
            ("vhost-user:", None),
            ("vhost-user:a", queues),
            ("vhost-user:a,b", None),
        ] {
            assert!(of_file("vm", listen, queues, Path::new("/")).is_err(), "{listen}");
        }
    }
}

//! What the name of a backing image means.
//!
//! A name without a scheme is relative to the image that has it, as qemu has it: to the folder of a
//! file, or to the URI up to its last slash. An image that is remote may name nothing but that: who
//! wrote it must not choose which files of this host, or which servers of its network, are read.

use cairn_block::ConfigError;

use crate::argument::is_remote;

/// The argument of the backing image `name` of the image at `image`, both without `qcow2:`.
///
/// # Errors
/// It names nothing that may be opened. The error has no device yet.
pub(super) fn resolve(image: &str, name: &str) -> Result<String, ConfigError> {
    let wrong = |expected: &str| {
        Err(ConfigError::argument("", "backing file", format!("'{name}'"), expected))
    };
    let name_of_file = name.strip_prefix("file:").unwrap_or(name);
    let has_scheme = |name: &str| {
        let scheme = name.split('/').next().unwrap_or_default();
        scheme.contains(':')
    };
    if is_remote(image) {
        // Neither another server or folder, nor parameters.
        let is_plain = |part: &str| {
            let is_of_name = |c: char| c.is_alphanumeric() || "-_.+, ".contains(c);
            !part.is_empty() && part != ".." && part.chars().all(is_of_name)
        };
        let is_beneath = name.split('/').all(is_plain) && !(name.contains('/') && is_rbd(image));
        return match beside_uri(image, name).filter(|_| is_beneath) {
            Some(uri) => Ok(uri),
            None => wrong("a name relative to that of the image, which is remote"),
        };
    }
    if is_remote(name) {
        return Ok(name.to_owned());
    }
    if has_scheme(name_of_file) {
        return wrong("a path, or a URI of an export, an object or an image of Ceph");
    }
    if name_of_file.starts_with('/') {
        return Ok(name_of_file.to_owned());
    }
    let folder = image.rfind('/').map_or("./", |slash| &image[..=slash]);
    // A path that begins with a scheme of ours is still a path.
    let dot = if folder.starts_with(['/', '.']) { "" } else { "./" };
    Ok(format!("{dot}{folder}{name_of_file}"))
}

/// The URI of what lies beside a URI; `None` if that has no path. Its parameters stay where they
/// belong to the server of all its content; those of an object are its own.
fn beside_uri(image: &str, name: &str) -> Option<String> {
    let is_object = image.contains("://") && !image.starts_with("nbd");
    let path_end = image.find(['?', '#']).unwrap_or(image.len());
    let (path, parameters) = image.split_at(path_end);
    let authority = path.find("://").map_or(0, |at| at + "://".len());
    let slash = authority + path[authority..].rfind('/')?;
    let parameters = if is_object { "" } else { parameters };
    Some(format!("{}{name}{parameters}", &path[..=slash]))
}

/// In the name of an image of Ceph a slash ends a pool or namespace.
fn is_rbd(image: &str) -> bool {
    image.starts_with("rbd:")
}

#[cfg(test)]
mod tests {
    use super::resolve;

    #[test]
    fn a_backing_name_is_relative_to_the_image_that_has_it() {
        for (image, name, expected) in [
            ("/img/a.qcow2", "b.raw", "/img/b.raw"),
            ("/img/a.qcow2", "../b.raw", "/img/../b.raw"),
            ("/img/a.qcow2", "/other/b.raw", "/other/b.raw"),
            ("/img/a.qcow2", "file:b", "/img/b"),
            ("/img/a.qcow2", "x/b:c", "/img/x/b:c"),
            ("/img/a.qcow2", "nbd://h/b", "nbd://h/b"),
            ("a.qcow2", "b", "./b"),
            ("mem:/a.qcow2", "b", "./mem:/b"),
            ("./sub/a.qcow2", "b", "./sub/b"),
            ("https://h/img/a.qcow2?sig=1#etag=x", "b", "https://h/img/b"),
            ("s3://bucket/img/a.qcow2", "c/b", "s3://bucket/img/c/b"),
            ("nbd+unix:///a?socket=/run/n", "b", "nbd+unix:///b?socket=/run/n"),
            ("rbd:vms/a?user=x", "b", "rbd:vms/b?user=x"),
        ] {
            assert_eq!(resolve(image, name).unwrap(), expected, "{image}: {name}");
        }
    }

    #[test]
    fn a_remote_image_names_nothing_of_this_host_or_of_other_servers() {
        for name in ["/etc/shadow", "file:/etc/shadow", "http://169.254.169.254/", "nbd://h/b"] {
            let line = resolve("https://h/a.qcow2", name).expect_err(name).to_string();
            assert!(line.contains(name) && line.contains("remote"), "{line}");
        }
        for (image, name) in [
            ("nbd://h", "127.0.0.1/secret"),
            ("nbd+unix://?socket=/run/n", "b"),
            ("https://h?sig=1", "b"),
            ("https://h/img/a", "../b"),
            ("https://h/img/a", "b#unchecked"),
            ("nbd://h/a", "b?reconnect=1"),
            ("rbd:vms/a", "b?conf=/etc/x"),
            ("rbd:vms/a", "b@snap"),
            ("rbd:vms/a", "space/b"),
            ("https://h/img/a", "%2e%2e/b"),
        ] {
            let line = resolve(image, name).expect_err(name).to_string();
            assert!(line.contains(name) && line.contains("remote"), "{image}: {line}");
        }
        for name in ["json:{}", "ssh://h/b", "mem:1G", "fat:x"] {
            let line = resolve("/a.qcow2", name).expect_err(name).to_string();
            assert!(line.contains(name), "{line}");
        }
    }
}

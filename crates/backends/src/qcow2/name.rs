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
        return match name.starts_with('/') || has_scheme(name) {
            true => wrong("a name relative to that of the image, which is remote"),
            false => Ok(beside_uri(image, name)),
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

/// The URI of what lies beside a URI. Its parameters stay where they belong to the server of all
/// its content; those of an object are its own.
fn beside_uri(image: &str, name: &str) -> String {
    let is_object = image.contains("://") && !image.starts_with("nbd");
    let path_end = image.find(['?', '#']).unwrap_or(image.len());
    let (path, parameters) = image.split_at(path_end);
    let slash = path.rfind('/').map_or(path.len(), |slash| slash + 1);
    let parameters = if is_object { "" } else { parameters };
    format!("{}{name}{parameters}", &path[..slash])
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
            ("s3://bucket/img/a.qcow2", "../b", "s3://bucket/img/../b"),
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
        for name in ["json:{}", "ssh://h/b", "mem:1G", "fat:x"] {
            let line = resolve("/a.qcow2", name).expect_err(name).to_string();
            assert!(line.contains(name), "{line}");
        }
    }
}

//! [`ClientKey`]: a key that a client shares with its server, in place of certificates.

use std::path::Path;

use cairn_block::ConfigError;

use crate::session::Engine;

/// Which key a client has.
#[derive(Clone, Copy, Debug)]
pub struct ClientKey<'a> {
    /// A file with lines `NAME:HEX`.
    pub file: &'a Path,
    /// The client's name: the server finds the key by it.
    pub user: &'a str,
}

impl ClientKey<'_> {
    /// The engine of a session. Reads the file, so that a new key counts at once.
    ///
    /// # Errors
    /// The file cannot be read, or has no key of that name. A program without the feature `tls-psk`
    /// has none.
    #[cfg(feature = "tls-psk")]
    pub fn engine(&self) -> Result<Box<dyn Engine>, ConfigError> {
        match crate::psk::client::session(self.file, self.user) {
            Ok(session) => Ok(Box::new(session)),
            Err(detail) => Err(crate::files::refused(self.file, detail)),
        }
    }

    /// The same in a program without keys.
    ///
    /// # Errors
    /// Always.
    #[cfg(not(feature = "tls-psk"))]
    pub fn engine(&self) -> Result<Box<dyn Engine>, ConfigError> {
        use cairn_block::ConfigKind;
        let detail = "TLS: found a program without keys, expected one that was built with the \
                      feature tls-psk";
        let file = self.file.display().to_string();
        Err(ConfigError::new(ConfigKind::Unsupported, file, detail))
    }
}

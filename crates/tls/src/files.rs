//! What files in PEM form have: certificates, keys, lists of revoked certificates.

use std::io::ErrorKind;
use std::path::Path;

use cairn_block::{ConfigError, ConfigKind};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};

/// Every object of a kind in a file; at least one.
pub fn all<T: PemObject>(path: &Path) -> Result<Vec<T>, ConfigError> {
    let objects = T::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<T>, _>>);
    let objects = objects.map_err(|error| not_read(path, error))?;
    match objects.is_empty() {
        true => Err(not_read(path, rustls::pki_types::pem::Error::NoItemsFound)),
        false => Ok(objects),
    }
}

fn not_read(path: &Path, error: rustls::pki_types::pem::Error) -> ConfigError {
    use rustls::pki_types::pem::Error;
    match error {
        Error::Io(error) if error.kind() == ErrorKind::NotFound => {
            refused(path, "there is no such file".to_owned())
        }
        Error::Io(error) => refused(path, format!("cannot be read: {error}")),
        Error::NoItemsFound => refused(path, "found nothing in PEM form of this kind".to_owned()),
        error => refused(path, error.to_string()),
    }
}

pub fn refused(path: &Path, detail: String) -> ConfigError {
    ConfigError::new(ConfigKind::Argument, path.display().to_string(), format!("TLS: {detail}"))
}

/// The certificates of `NAME-cert.pem` in a folder, and the key of `NAME-key.pem`.
pub fn pair(
    folder: &Path,
    name: &str,
) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), ConfigError> {
    let chain = all::<CertificateDer<'static>>(&folder.join(format!("{name}-cert.pem")))?;
    let key = folder.join(format!("{name}-key.pem"));
    let key = PrivateKeyDer::from_pem_file(&key).map_err(|error| not_read(&key, error))?;
    Ok((chain, key))
}

/// The authorities of `ca-cert.pem` in a folder.
pub fn roots(folder: &Path) -> Result<RootCertStore, ConfigError> {
    let path = folder.join("ca-cert.pem");
    let mut roots = RootCertStore::empty();
    for certificate in all::<CertificateDer<'static>>(&path)? {
        roots.add(certificate).map_err(|error| refused(&path, error.to_string()))?;
    }
    Ok(roots)
}

/// The lists of `ca-crl.pem` in a folder; none if there is no such file. A certificate whose issuer
/// has no such list is not revoked.
pub fn revoked(
    folder: &Path,
) -> Result<Option<Vec<CertificateRevocationListDer<'static>>>, ConfigError> {
    let path = folder.join("ca-crl.pem");
    // A name that leads nowhere is a mistake, not the absence of a list.
    match path.symlink_metadata() {
        Ok(_) => all(&path).map(Some),
        Err(_) => Ok(None),
    }
}

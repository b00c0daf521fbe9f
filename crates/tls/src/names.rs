//! The names in a certificate: its common names, and the DNS names among its alternative names.
//!
//! The certificate was checked before, so it has the form that its authority gave it; what cannot
//! be read is left out all the same.

use x509_cert::Certificate;
use x509_cert::der::asn1::{PrintableStringRef, TeletexStringRef, Utf8StringRef};
use x509_cert::der::oid::ObjectIdentifier;
use x509_cert::der::{Decode, Tag, Tagged};
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

/// `id-at-commonName`.
const COMMON_NAME: ObjectIdentifier = ObjectIdentifier::new_unwrap("2.5.4.3");

/// The names in a certificate in DER form.
pub fn names_of(der: &[u8]) -> Vec<String> {
    let Ok(certificate) = Certificate::from_der(der) else { return Vec::new() };
    let certificate = &certificate.tbs_certificate;
    let subject = certificate.subject.0.iter().flat_map(|part| part.0.iter());
    let common = subject.filter(|part| part.oid == COMMON_NAME).filter_map(|part| {
        let value = &part.value;
        match value.tag() {
            Tag::Utf8String => value.decode_as::<Utf8StringRef<'_>>().ok().map(|it| it.to_string()),
            Tag::PrintableString => {
                value.decode_as::<PrintableStringRef<'_>>().ok().map(|it| it.to_string())
            }
            Tag::TeletexString => {
                value.decode_as::<TeletexStringRef<'_>>().ok().map(|it| it.to_string())
            }
            _ => None,
        }
    });
    let alternative = certificate.get::<SubjectAltName>().ok().flatten();
    let alternative = alternative.map(|(_, names)| names.0).unwrap_or_default();
    let alternative = alternative.into_iter().filter_map(|name| match name {
        GeneralName::DnsName(name) => Some(name.to_string()),
        _ => None,
    });
    common.chain(alternative).collect()
}

#[cfg(test)]
mod tests {
    use super::names_of;

    #[test]
    fn what_is_no_certificate_has_no_names() {
        assert!(names_of(&[]).is_empty());
        assert!(names_of(&[0x30, 0x03, 0x02, 0x01]).is_empty());
    }
}

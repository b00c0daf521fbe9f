//! The head of a request, decoded without a socket.

/// The longest head, in bytes.
pub const HEAD_BYTES_MAX: usize = 8 << 10;

/// The most header lines.
const HEADERS_MAX: usize = 64;

/// What a client asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Only the head of the answer is wanted.
    pub head_only: bool,
    /// The path, without what follows a question mark.
    pub path: String,
    /// The header `Host`, without its port.
    pub host: Option<String>,
    /// The header `Accept`.
    pub accept: String,
    /// A browser says that a page of another site asks (`Sec-Fetch-Site`), and not its user.
    pub is_cross_site: bool,
}

/// Why a request is refused: a status code and its words.
pub type Refusal = (u16, &'static str);

/// Decodes a head. None if there is more to come.
///
/// # Errors
/// It is no head that this server takes.
pub fn parse(bytes: &[u8]) -> Result<Option<Head>, Refusal> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(bytes) {
        Ok(httparse::Status::Complete(_)) => {}
        Ok(httparse::Status::Partial) if bytes.len() < HEAD_BYTES_MAX => return Ok(None),
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Err((431, "Request Header Fields Too Large"));
        }
        Err(_) => return Err((400, "Bad Request")),
    }
    let head_only = match request.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => return Err((405, "Method Not Allowed")),
    };
    let header = |name: &str| {
        let mut found = request.headers.iter().filter(|it| it.name.eq_ignore_ascii_case(name));
        let value = found.next().and_then(|it| std::str::from_utf8(it.value).ok());
        // Two of one name could mean two things.
        value.filter(|_| found.next().is_none())
    };
    let path = request.path.unwrap_or_default();
    let path = path.split_once('?').map_or(path, |(path, _)| path).to_owned();
    let host = header("host").map(|host| host_of(host).to_owned());
    let accept = header("accept").unwrap_or_default().to_owned();
    let is_cross_site = header("sec-fetch-site").is_some_and(|site| site == "cross-site")
        && header("sec-fetch-mode") != Some("navigate");
    Ok(Some(Head { head_only, path, host, accept, is_cross_site }))
}

/// A host without its port: `[::1]:80` is `::1`.
fn host_of(text: &str) -> &str {
    if let Some(inside) = text.strip_prefix('[') {
        return inside.split_once(']').map_or(text, |(host, _)| host);
    }
    text.rsplit_once(':').map_or(text, |(host, _)| host)
}

/// True if a browser on another site cannot have been made to name this host: a name that is not
/// this machine's may lead here after that site has changed what the name means.
pub fn is_own_host(host: Option<&str>) -> bool {
    let Some(host) = host else { return false };
    host.eq_ignore_ascii_case("localhost") || host.parse::<std::net::IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::{HEAD_BYTES_MAX, is_own_host, parse};

    #[test]
    fn a_head_is_read_once_it_is_whole() {
        let text = "GET /metrics?x=1 HTTP/1.1\r\nhost: [::1]:9000\r\nAccept: text/plain\r\n\r\n";
        for len in 0..text.len() {
            assert_eq!(parse(&text.as_bytes()[..len]), Ok(None), "{len}");
        }
        let head = parse(text.as_bytes()).unwrap().unwrap();
        assert_eq!((head.path.as_str(), head.accept.as_str()), ("/metrics", "text/plain"));
        assert_eq!((head.host.as_deref(), head.head_only), (Some("::1"), false));
        assert!(parse(b"HEAD / HTTP/1.0\r\n\r\n").unwrap().unwrap().head_only);
    }

    #[test]
    fn what_is_no_request_for_a_page_is_refused() {
        let code = |bytes: &[u8]| parse(bytes).unwrap_err().0;
        assert_eq!(code(b"POST / HTTP/1.1\r\n\r\n"), 405);
        assert_eq!(code(b"\x16\x03\x01\x02\x00\x01\x00"), 400);
        assert_eq!(code(b"GET / HTTP/9\r\n\r\n"), 400);
        let long = [b"GET /".as_slice(), &vec![b'a'; HEAD_BYTES_MAX]].concat();
        assert_eq!(code(&long[..HEAD_BYTES_MAX]), 431);
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(65));
        assert_eq!(code(many.as_bytes()), 431);
    }

    #[test]
    fn only_addresses_and_localhost_are_hosts_of_this_machine() {
        for host in ["localhost", "LOCALHOST", "127.0.0.1", "::1", "192.168.0.7"] {
            assert!(is_own_host(Some(host)), "{host}");
        }
        for host in [None, Some("evil.example"), Some(""), Some("127.0.0.1.example")] {
            assert!(!is_own_host(host), "{host:?}");
        }
        let two = b"GET / HTTP/1.1\r\nhost: localhost\r\nhost: evil\r\n\r\n";
        assert_eq!(parse(two).unwrap().unwrap().host, None);
    }
}

# FOLDER ETAG(strong|weak|none) [CERTIFICATE KEY]: a web server with ranges at $WEB_PORT, or at a free
# port, which it prints.
# Each answer with data is a line of its first and last byte on stderr.
import http.server, os, re, socketserver, ssl, sys

class Files(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = 1 << 20
    def log_message(self, *_): pass
    def answer(self, status, headers, body):
        self.send_response(status)
        for name, value in headers.items(): self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        try: file = open(sys.argv[1] + self.path, "rb")
        except OSError: return self.answer(404, {}, b"")
        with file:
            stat = os.fstat(file.fileno())
            tag = '"%x-%x"' % (stat.st_ino, stat.st_mtime_ns)
            tags = {"strong": {"ETag": tag}, "weak": {"ETag": "W/" + tag}, "none": {}}[sys.argv[2]]
            if self.headers.get("If-Match", tag) != tag: return self.answer(412, tags, b"")
            start, end = re.match(r"bytes=(\d+)-(\d+)", self.headers["Range"]).groups()
            start, end = int(start), min(int(end) + 1, stat.st_size)
            file.seek(start)
            tags["Content-Range"] = f"bytes {start}-{end - 1}/{stat.st_size}"
            sys.stderr.write(f"{start} {end - 1}\n")
            self.answer(206, tags, file.read(end - start))

class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True

server = Server(("127.0.0.1", int(os.environ.get("WEB_PORT", "0"))), Files)
if len(sys.argv) > 3:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[3], sys.argv[4])
    server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()

"""A server on this machine for what a client would ask the hub."""

import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit


class _Handler(BaseHTTPRequestHandler):
    pages: Mapping[str, bytes]
    log: list[str]

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.log.append(path)
        body = self.pages.get(path)
        self.send_response(404 if body is None else 200)
        self.send_header("ETag", f'"{zlib.crc32(body or b"")}"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("X-Error-Code", "RepoNotFound" if "/api/" in path else "EntryNotFound")
        body = body or b""
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(pages: Mapping[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    """Serve `pages` by path; gives the address and the paths asked for so far."""
    log: list[str] = []
    handler = type("Handler", (_Handler,), {"pages": pages, "log": log})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", log
        finally:
            server.shutdown()
            thread.join()

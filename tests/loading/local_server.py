"""A server on this machine for what a client would ask the hub."""

import hashlib
import json
import re
import threading
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

REPO = "someone/model"
SHA = "0" * 40
LARGE = (".safetensors", ".gguf")  # what the hub keeps apart from git, known by its SHA-256


class _Handler(BaseHTTPRequestHandler):
    pages: Mapping[str, bytes]
    log: list[str]
    cut_at: int | None
    stall: threading.Event | None

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        start = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        self.log.append(path + (f" from {start[1]}" if start else ""))
        content, first = self.pages.get(path), int(start[1]) if start else 0
        is_file = "/resolve/" in path
        fails = is_file and self.cut_at is not None and sum("/resolve/" in p for p in self.log) > 1
        body = (content or b"")[first:]
        status = 500 if fails else 404 if content is None else 206 if start else 200
        self.send_response(status)
        self.send_header("ETag", f'"{zlib.crc32(content or b"")}"')
        self.send_header("X-Repo-Commit", SHA)
        self.send_header("X-Error-Code", "RepoNotFound" if "/api/" in path else "EntryNotFound")
        self.send_header("Content-Length", str(len(body)))
        if start:
            total = len(content or b"")
            self.send_header("Content-Range", f"bytes {first}-{total - 1}/{total}")
        self.end_headers()
        if self.command == "GET" and not fails:
            self._send(body, self.cut_at if is_file else None)

    def _send(self, body: bytes, cut_at: int | None) -> None:
        self.wfile.write(body[:cut_at])
        if cut_at is not None and self.stall is not None:
            self.wfile.flush()
            self.stall.wait(60)
        self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving(
    pages: Mapping[str, bytes],
    *,
    cut_at: int | None = None,
    stall: threading.Event | None = None,
) -> Iterator[tuple[str, list[str]]]:
    """Serve `pages` by path; gives the address and the paths asked for so far.

    cut_at: send so many bytes of the first file that is asked for, then break off and fail.
    stall: do not break off before this is set.
    """
    log: list[str] = []
    names = {"pages": pages, "log": log, "cut_at": cut_at, "stall": stall}
    handler = type("Handler", (_Handler,), names)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", log
        finally:
            server.shutdown()
            thread.join()


def hub_pages(
    files: Mapping[str, bytes],
    *,
    sha: str = SHA,
    repo: str = REPO,
    served: Mapping[str, bytes] | None = None,
) -> dict[str, bytes]:
    """What the hub answers for a repository with these files at its newest commit.

    served: what is sent in place of a file's content.
    """
    siblings = [_sibling(name, content) for name, content in files.items()]
    info = {"id": repo, "sha": sha, "siblings": siblings, "tags": [], "private": False}
    page = json.dumps(info).encode()
    pages = {f"/api/models/{repo}": page}
    pages |= {f"/api/models/{repo}/revision/{revision}": page for revision in ("main", sha)}
    for name, content in files.items():
        pages[f"/{repo}/resolve/{sha}/{name}"] = (served or {}).get(name, content)
    return pages


def _sibling(name: str, content: bytes) -> dict[str, object]:
    sibling: dict[str, object] = {"rfilename": name, "size": len(content), "blobId": etag(content)}
    if name.endswith(LARGE):
        sha = etag(content, large=True)
        sibling["lfs"] = {"sha256": sha, "size": len(content), "pointerSize": 134}
    return sibling


def etag(content: bytes, *, large: bool = False) -> str:
    """The hash by which the hub knows a content."""
    if large:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()

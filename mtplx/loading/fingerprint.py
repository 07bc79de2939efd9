"""Which trunk a head or a profile belongs to: a hash of a checkpoint's content, quickly.

Hashing gigabytes would take longer than loading them, so the hash covers every file's size, its
first and last megabyte (headers and tensor tables are there) and samples spread over the rest.
"""

import hashlib
from pathlib import Path

from mtplx.loading.gguf_known import gguf_parts

EDGE = 1 << 20
SAMPLE = 1 << 12
NUM_SAMPLES = 256


def fingerprint(path: Path) -> str:
    """32 hex digits for a GGUF model, all its files, or for the safetensors files of a folder."""
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else gguf_parts(path)
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        size = file.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        step = max(SAMPLE, (size - 2 * EDGE) // NUM_SAMPLES)
        with file.open("rb") as content:
            digest.update(content.read(EDGE))
            for offset in range(EDGE, size - EDGE, step):
                content.seek(offset)
                digest.update(content.read(SAMPLE))
            content.seek(max(0, size - EDGE))
            digest.update(content.read(EDGE))
    return digest.hexdigest()

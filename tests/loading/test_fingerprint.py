from pathlib import Path

import numpy as np
import pytest

from mtplx.loading.fingerprint import EDGE, fingerprint

LARGE = 5 * EDGE + 12_345


def content(size: int, seed: int = 0) -> bytearray:
    return bytearray(np.random.default_rng(seed).bytes(size))


def of(path: Path, data: bytes | bytearray) -> str:
    path.write_bytes(data)
    return fingerprint(path)


@pytest.mark.parametrize("size", [0, 1, EDGE - 1, EDGE + 1, 2 * EDGE, LARGE])
def test_a_copy_under_another_name_is_the_same_trunk(size: int, tmp_path: Path) -> None:
    """The content decides, not the name or the time; 32 hex digits."""
    one, other = of(tmp_path / "a.gguf", content(size)), of(tmp_path / "b.gguf", content(size))
    assert one == other
    assert len(one) == 32
    assert int(one, 16) >= 0


@pytest.mark.parametrize("size", [1, 1000, EDGE, 2 * EDGE])
def test_every_byte_of_a_small_file_counts(size: int, tmp_path: Path) -> None:
    """Up to two megabytes everything is read."""
    data = content(size)
    prints = {of(tmp_path / "a", data)}
    for place in {0, size // 3, size // 2, size - 1}:
        changed = data.copy()
        changed[place] ^= 1
        prints.add(of(tmp_path / "a", changed))
    assert len(prints) == 1 + len({0, size // 3, size // 2, size - 1})


def test_both_ends_and_the_length_of_a_large_file_count(tmp_path: Path) -> None:
    """Where headers and tables are, a single bit is enough; and so is one byte more or less."""
    data = content(LARGE)
    prints = {of(tmp_path / "a", data), of(tmp_path / "a", data[:-1])}
    prints.add(of(tmp_path / "a", data + b"\0"))
    for place in (0, EDGE - 1, LARGE - EDGE, LARGE - 1):
        changed = data.copy()
        changed[place] ^= 1
        prints.add(of(tmp_path / "a", changed))
    assert len(prints) == 7


def test_the_middle_of_a_large_file_counts(tmp_path: Path) -> None:
    """Other weights under the same header are another trunk."""
    data = content(LARGE)
    other = data.copy()
    other[2 * EDGE : 3 * EDGE] = content(EDGE, 1)
    assert of(tmp_path / "a", data) != of(tmp_path / "a", other)


def test_a_folder_is_its_safetensors_in_order(tmp_path: Path) -> None:
    """All shards count, and nothing that lies beside them."""
    for i in range(2):
        (tmp_path / f"model-{i}.safetensors").write_bytes(content(1000, i))
    before = fingerprint(tmp_path)
    (tmp_path / "README.md").write_text("hello")
    assert fingerprint(tmp_path) == before
    (tmp_path / "model-1.safetensors").write_bytes(content(1000, 7))
    assert fingerprint(tmp_path) != before


def test_where_one_shard_ends_counts(tmp_path: Path) -> None:
    """The same bytes divided differently are not the same files."""
    data, prints = content(1000), set()
    for cut in (400, 500):
        (tmp_path / "a.safetensors").write_bytes(data[:cut])
        (tmp_path / "b.safetensors").write_bytes(data[cut:])
        prints.add(fingerprint(tmp_path))
    assert len(prints) == 2

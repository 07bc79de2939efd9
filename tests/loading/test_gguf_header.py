"""GGUF metadata: every value as it was written, or an error that says what is wrong."""

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from mtplx.errors import CheckpointError, FileAccessError
from mtplx.loading.gguf_file import open_gguf
from mtplx.loading.gguf_header import gguf_header
from tests.tiny_gguf import write_model


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A file with a key of every kind, lists before and behind the single values."""
    path = tmp_path / "odd.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_array("a.texts", ["", "ü", "x" * 300])
    for kind in ("uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"):
        getattr(writer, f"add_{kind}")(f"n.{kind}", 100)
    writer.add_float32("n.float32", 0.6)
    writer.add_float64("n.float64", 0.1)
    writer.add_bool("n.bool", True)
    writer.add_array("b.numbers", [1.5, 2.5])
    writer.add_array("b.flags", [True, False])
    writer.add_string("n.text", "größe\n")
    writer.add_tensor("w", np.ones((2, 32), np.float32))
    for write in ("header_to_file", "kv_data_to_file", "tensors_to_file"):
        getattr(writer, f"write_{write}")()
    writer.close()
    return path


def test_values_are_those_of_the_thorough_reader(odd: Path, tmp_path: Path) -> None:
    """Of every kind; lists are left out and passed over rightly."""
    for path in (odd, write_model(tmp_path / "tiny.gguf")):
        whole = open_gguf(path).metadata
        expected = {name: value for name, value in whole.items() if not isinstance(value, list)}
        assert gguf_header(path) == expected


def test_values_are_those_of_the_gguf_package(odd: Path, tmp_path: Path) -> None:
    """Single values and lists of every kind."""
    for path in (odd, write_model(tmp_path / "tiny.gguf")):
        fields = gguf.GGUFReader(path).fields
        expected = {n: f.contents() for n, f in fields.items() if not n.startswith("GGUF.")}
        assert open_gguf(path).metadata == expected


def test_a_list_that_claims_to_be_endless_is_refused(odd: Path) -> None:
    """A damaged length is an error at once, not an attempt to read that much."""
    whole = odd.read_bytes()
    for name in (b"a.texts", b"b.numbers"):
        damaged = bytearray(whole)
        place = damaged.index(name) + len(name) + 4 + 4
        damaged[place : place + 8] = (2**62).to_bytes(8, "little")
        odd.write_bytes(damaged)
        for read in (gguf_header, open_gguf):
            with pytest.raises(CheckpointError, match="past its end"):
                read(odd)


def test_text_that_is_not_utf8_names_its_key(odd: Path) -> None:
    """A damaged text is an error that says which field it is in."""
    odd.write_bytes(odd.read_bytes().replace("größe".encode(), b"gr\xff\xfe\xfd\xfce"))
    for read in (gguf_header, open_gguf):
        with pytest.raises(CheckpointError, match=r"'n\.text' is not UTF-8"):
            read(odd)


def test_a_file_cut_short_in_its_metadata_is_an_error(odd: Path) -> None:
    """Wherever it ends, by name; never a part of the values."""
    whole = odd.read_bytes()
    end = whole.index("größe".encode())
    for length in (4, 10, 24, *range(25, end, 23)):
        odd.write_bytes(whole[:length])
        for read in (gguf_header, open_gguf):
            with pytest.raises(CheckpointError, match=r"odd\.gguf is damaged or cut short"):
                read(odd)


def test_no_damage_hangs_or_ends_in_anything_but_an_error(odd: Path) -> None:
    """Lengths and kinds that are nonsense."""
    whole = odd.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(300):
        damaged = bytearray(whole)
        place = int(rng.integers(4, whole.index("größe".encode())))
        damaged[place : place + 8] = struct.pack("<Q", int(rng.choice([0, 1, 9, 2**31, 2**63])))
        odd.write_bytes(damaged)
        for read in (gguf_header, open_gguf):
            try:
                read(odd)
            except CheckpointError as error:
                assert "odd.gguf" in str(error)  # noqa: PT017, many files of which some are read


def test_deep_nesting_is_an_error(tmp_path: Path) -> None:
    """Lists of lists of lists, ten thousand deep."""
    path = tmp_path / "deep.gguf"
    key = struct.pack("<Q", 1) + b"a" + struct.pack("<I", 9)
    path.write_bytes(
        b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key + struct.pack("<IQ", 9, 1) * 10_000
    )
    with pytest.raises(CheckpointError, match=r"deep\.gguf"):
        gguf_header(path)


def test_what_is_no_gguf_file_is_said_to_be_none(tmp_path: Path) -> None:
    """Neither is one that is not there."""
    (tmp_path / "a.gguf").write_bytes(b"<html>")
    with pytest.raises(CheckpointError, match="not a GGUF file"):
        gguf_header(tmp_path / "a.gguf")
    with pytest.raises(FileAccessError, match=r"b\.gguf"):
        gguf_header(tmp_path / "b.gguf")

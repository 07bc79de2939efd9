from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from mtplx.errors import CheckpointError
from mtplx.loading.gguf_metadata import QuickReader, gguf_metadata

VALUES: dict[str, Any] = {
    "text": "é and more",
    "strings": ["", "a", "Ġ the", "👍", "x" * 300],
    "integers": [1, -2, 3],
    "floats": [0.5, -1.0],
    "flags": [True, False],
    "count": 7,
    "share": 0.25,
    "flag": False,
}


def write(path: Path) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    for name, value in VALUES.items():
        kind = gguf.GGUFValueType.get_type(value)
        writer.add_key_value(name, value, kind)
    writer.add_tensor("weight", np.arange(6, dtype=np.float32).reshape(2, 3))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_values_are_those_that_were_written(tmp_path: Path) -> None:
    """Metadata of every kind comes back as the plain Python value that went in."""
    metadata = gguf_metadata(QuickReader(write(tmp_path / "a.gguf")))
    assert {name: metadata[name] for name in VALUES} == VALUES


def test_a_quick_reader_stands_in_for_the_stock_one(tmp_path: Path) -> None:
    """Fields, their types and offsets, and tensors are the stock reader's."""
    path = write(tmp_path / "a.gguf")
    stock, quick = gguf.GGUFReader(path), QuickReader(path)
    for name, field in stock.fields.items():
        assert quick.fields[name].contents() == field.contents(), name
        assert quick.fields[name].types == field.types, name
        assert quick.fields[name].offset == field.offset, name
    assert np.array_equal(quick.tensors[0].data, stock.tensors[0].data)


def test_a_file_cut_inside_its_metadata_is_refused(tmp_path: Path) -> None:
    """Wherever the metadata ends too early, the reader raises rather than returning a part."""
    path = write(tmp_path / "a.gguf")
    whole = path.read_bytes()
    end = whole.index(b"weight")
    for length in range(8, end, 7):
        cut = tmp_path / "cut.gguf"
        cut.write_bytes(whole[:length])
        with pytest.raises((ValueError, IndexError)):
            QuickReader(cut)


def test_an_array_that_claims_to_be_endless_is_refused(tmp_path: Path) -> None:
    """A damaged length is an error at once, not an attempt to read that much."""
    path = write(tmp_path / "a.gguf")
    whole = bytearray(path.read_bytes())
    for name in (b"strings", b"integers"):
        place = whole.index(name) + len(name) + 4 + 4
        whole[place : place + 8] = (2**62).to_bytes(8, "little")
        path.write_bytes(whole)
        with pytest.raises(ValueError, match="past the end of the file"):
            QuickReader(path)


def test_text_that_is_not_utf8_names_its_key(tmp_path: Path) -> None:
    """A damaged string is a CheckpointError that says which field it is in."""
    path = write(tmp_path / "a.gguf")
    path.write_bytes(path.read_bytes().replace("👍".encode(), b"\xff\xfe\xfd\xfc"))
    with pytest.raises(CheckpointError, match="'strings'"):
        gguf_metadata(QuickReader(path))

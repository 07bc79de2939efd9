"""Folders of packed safetensors that are damaged somewhere: an error by name, or a whole model."""

import json
import re
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mtplx.cli.app import run
from mtplx.errors import CheckpointError, MtplxError
from mtplx.loading.describe import describe
from mtplx.loading.load import load
from mtplx.loading.stored_tensors import INDEX
from mtplx.models.family import Tensors
from tests.packings import PACKINGS
from tests.tiny_folder import write_folder

NAMED = re.compile(r"layers|_proj|embed|norm|\.safetensors|\.json")
ODD: list[Any] = [
    *(None, True, -1, 0, 1, 3, 2**31, 2**63, 2**64, 1e308, float("nan"), float("inf")),
    *("", "x", "nvfp4", "fp8", "gptq", "awq", "modelopt", "bitsandbytes", "../x"),
    *([], [0, 0], [-1, 128], [128], ["a", "b"], [2**40, 1], [1, 1], [[1]], {}, {"a": 1}),
]
WRITTEN_ODD = ["", "{", "[]", "[" * 100_000, '{"a": ' + "9" * 6000 + "}", "\xff", "3", "null"]
SECTION_KEYS = (
    *("quant_method", "quant_algo", "weight_block_size", "bits", "group_size", "format"),
    *("config_groups", "quantized_layers", "kv_cache_scheme", "kv_cache_quant_algo", "ignore"),
)
checked = settings(
    derandomize=True,
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A checkpoint for each packing."""
    root = tmp_path_factory.mktemp("packed")
    return {name: packed_folder(root / name, name) for name in PACKINGS}


def packed_folder(path: Path, name: str) -> Path:
    folder, tensors = write_folder(path), {}
    for i, (full, array) in enumerate(sorted(tensors_of(folder).items())):
        base = full.removesuffix(".weight")
        if array.ndim < 2 or "embed" in base:
            tensors[full] = array
            continue
        rows, width = array.shape
        parts, _ = PACKINGS[name].matrix(rows, width, i)
        tensors |= {f"{base}.{part}": value for part, value in parts.items()}
    write_tensors(folder, tensors)
    section = {"quantization_config": dict(PACKINGS[name].config)}
    write_config(folder, json.loads((folder / "config.json").read_bytes()) | section)
    return folder


def tensors_of(folder: Path) -> Tensors:
    loaded = mx.load(str(folder / "model.safetensors"))
    assert isinstance(loaded, dict)
    return loaded


def write_tensors(folder: Path, tensors: Tensors) -> None:
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, {"format": "pt"})


def write_config(folder: Path, config: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(config))


def parted(folder: Path) -> tuple[dict[str, Any], bytes]:
    """The header and the data of a folder's only file."""
    whole = (folder / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", whole[:8])
    return json.loads(whole[8 : 8 + length]), whole[8 + length :]


def write_parted(folder: Path, header: bytes, data: bytes) -> None:
    content = struct.pack("<Q", len(header)) + header + data
    (folder / "model.safetensors").write_bytes(content)


def assert_told(folder: Path) -> str | None:
    """The error's text; None where the folder is a model whose logits are numbers."""
    for packed in (False, True):  # as on a CPU, and as on a GPU
        try:
            describe(folder, packed=packed)
        except MtplxError as error:
            assert NAMED.search(str(error)), error  # noqa: PT017, some are whole
    try:
        target = load(folder).target
    except MtplxError as error:
        assert NAMED.search(str(error)), error  # noqa: PT017
        return str(error)
    hidden = target.forward(mx.array([1, 2, 3]), target.make_cache())
    assert mx.isfinite(target.logits(target.normalise(hidden))).all()
    return None


def damaged(damage: Callable[[Path, st.DataObject], None]) -> Callable[..., None]:
    """A test of copies of the folders that `damage` was done to."""

    @checked
    @given(st.data(), st.sampled_from(sorted(PACKINGS)))
    def test(folders: dict[str, Path], tmp_path: Path, data: st.DataObject, name: str) -> None:
        folder = tmp_path / "m"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(folders[name], folder)
        damage(folder, data)
        assert_told(folder)

    test.__doc__ = damage.__doc__
    return test


@pytest.mark.parametrize("name", PACKINGS)
def test_what_is_whole_loads(name: str, folders: dict[str, Path]) -> None:
    """What the others are damaged from."""
    assert assert_told(folders[name]) is None


def _bytes(folder: Path, data: st.DataObject) -> None:
    """Bytes of the header exchanged, its length another, or the file cut off."""
    file = folder / "model.safetensors"
    whole = bytearray(file.read_bytes())
    (length,) = struct.unpack("<Q", whole[:8])
    kind = data.draw(st.sampled_from(["exchanged", "length", "cut"]))
    if kind == "exchanged":
        places = st.tuples(st.integers(0, 7 + length), st.integers(0, 255))
        for place, byte in data.draw(st.lists(places, min_size=1, max_size=4)):
            whole[place] = byte
    elif kind == "length":
        beyond = (0, 1, len(whole) - 8, len(whole), 2**31, 2**40, 2**63 - 1, 2**64 - 1)
        whole[:8] = struct.pack("<Q", data.draw(st.sampled_from(beyond)))
    else:
        whole = whole[: data.draw(st.integers(0, len(whole) - 1))]
    file.write_bytes(whole)


test_no_damage_to_bytes_ends_otherwise = damaged(_bytes)


def _entry(folder: Path, data: st.DataObject) -> None:
    """A tensor's type, shape or place in the header is another, or it is there twice."""
    header, content = parted(folder)
    names = sorted(header.keys() - {"__metadata__"})
    entry = header[data.draw(st.sampled_from(names))]
    start, end = entry["data_offsets"]
    other = header[data.draw(st.sampled_from(names))]
    shape = entry["shape"]
    values = {
        "dtype": ["F32", "BF16", "F16", "U8", "F8_E4M3", "F8_E8M0", "I32", "F64", "F4", "C64", 3],
        "shape": [[], [0], [-1], [2**32] * 2, shape[::-1], [*shape, 1], shape[:1], [1] * 99, None],
        "data_offsets": [
            *([0, 0], [1, 0], [-4, 0], [start + 1, end + 1], [start, end + 4], [start, end - 1]),
            *([0, 2**63], [2**64, 2**65], other["data_offsets"], [], [1], None, [0.5, 3]),
        ],
    }
    key = data.draw(st.sampled_from(sorted(values)))
    changed = {**entry, key: data.draw(st.sampled_from(values[key]))}
    name = next(name for name in names if header[name] is entry)
    if data.draw(st.booleans()):
        written = json.dumps(header | {name: changed})
    else:
        written = f'{json.dumps(header)[:-1]}, "{name}": {json.dumps(changed)}}}'
    write_parted(folder, written.encode(), content)


test_no_damage_to_an_entry_ends_otherwise = damaged(_entry)


def _scale(folder: Path, data: st.DataObject) -> None:
    """A scale that is missing, of another shape or type, or holds what is no number."""
    tensors = tensors_of(folder)
    names = [n for n in sorted(tensors) if "scale" in n or "norm" in n or n.endswith("_shape")]
    name = data.draw(st.sampled_from(names))
    array = tensors[name]
    kind = data.draw(st.sampled_from(["missing", "shape", "type", "value", "another"]))
    if kind == "missing":
        del tensors[name]
    elif kind == "shape":
        shapes = [(), (0,), (1,), (3,), (64,), (2, 2), (64, 3), (7, 1), (1, 1, 1)]
        tensors[name] = mx.ones(data.draw(st.sampled_from(shapes)), array.dtype)
    elif kind == "type":
        types = [mx.float32, mx.float16, mx.uint8, mx.int32, mx.int64, mx.uint32, mx.complex64]
        tensors[name] = array.astype(data.draw(st.sampled_from(types)))
    elif kind == "value":
        floating = mx.issubdtype(array.dtype, mx.floating)
        values = [float("nan"), float("inf"), 0, -1] if floating else [0x7F, 0xFF, 0, 1]
        held = np.array(array).reshape(-1)
        held[data.draw(st.integers(0, held.size - 1))] = data.draw(st.sampled_from(values))
        tensors[name] = mx.array(held.reshape(array.shape))
    else:
        tensors[name] = tensors[data.draw(st.sampled_from(sorted(tensors)))]
    write_tensors(folder, tensors)


test_no_damage_to_a_scale_ends_otherwise = damaged(_scale)


def _config(folder: Path, data: st.DataObject) -> None:
    """What config.json says of packing contradicts the tensors, or is nonsense."""
    config = json.loads((folder / "config.json").read_bytes())
    odd = st.sampled_from(ODD)
    kind = data.draw(st.sampled_from(["section", "keys", "mlx", "any", "text"]))
    if kind == "section":
        config["quantization_config"] = data.draw(odd)
    elif kind == "keys":
        stated = st.dictionaries(st.sampled_from(SECTION_KEYS), odd, min_size=1, max_size=4)
        config["quantization_config"] |= data.draw(stated)
    elif kind == "mlx":
        sizes = st.sampled_from([-1, 0, 4, 64, 2**40, "4", None])
        config["quantization"] = data.draw(
            st.one_of(odd, st.fixed_dictionaries({"bits": sizes, "group_size": sizes}))
        )
    elif kind == "any":
        config[data.draw(st.sampled_from(sorted(config)))] = data.draw(odd)
    write_config(folder, config)
    if kind == "text":
        name = data.draw(st.sampled_from(["config.json", "hf_quant_config.json"]))
        (folder / name).write_bytes(data.draw(st.sampled_from(WRITTEN_ODD)).encode("latin-1"))


test_no_config_ends_otherwise = damaged(_config)


def _index(folder: Path, data: st.DataObject) -> None:
    """An index that names files which are not there, or not in the folder."""
    listed = dict.fromkeys(sorted(tensors_of(folder)), "model.safetensors")
    elsewhere: list[Any] = [
        *("../x", "../model.safetensors", "/etc/passwd", "gone.safetensors", "", None, [], 3),
        *("config.json", "sub/model.safetensors", "a" * 5000, "\0"),
    ]
    name = data.draw(st.sampled_from(sorted(listed)))
    index: dict[str, Any] = {"weight_map": listed | {name: data.draw(st.sampled_from(elsewhere))}}
    odd = st.sampled_from([*WRITTEN_ODD, '{"weight_map": []}', '{"weight_map": {}}'])
    written = data.draw(st.one_of(st.just(json.dumps(index)), odd))
    (folder / INDEX).write_bytes(written.encode("latin-1"))


test_no_index_ends_otherwise = damaged(_index)


@pytest.mark.parametrize("elsewhere", ["../model.safetensors", "/tmp/model.safetensors"])
def test_nothing_is_read_from_outside_of_the_folder(
    elsewhere: str, folders: dict[str, Path], tmp_path: Path
) -> None:
    """Though a whole file lies where the index says."""
    folder = tmp_path / "m"
    shutil.copytree(folders["int4"], folder)
    shutil.copy(folder / "model.safetensors", tmp_path)
    listed = dict.fromkeys(tensors_of(tmp_path), elsewhere)
    (folder / INDEX).write_text(json.dumps({"weight_map": listed}))
    with pytest.raises(CheckpointError, match=f"holds no .* that {INDEX} lists"):
        load(folder)


def test_more_layers_than_tensors_are_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    """Before a model of them is begun, which would not end."""
    folder = tmp_path / "m"
    shutil.copytree(folders["MXFP4"], folder)
    config = json.loads((folder / "config.json").read_bytes())
    write_config(folder, config | {"num_hidden_layers": 2**31})
    with pytest.raises(CheckpointError, match="num_hidden_layers = 2147483648"):
        load(folder)


@pytest.mark.parametrize("more", [[], ["--no-load", "--json"]])
def test_the_program_says_it_in_a_line(
    more: list[str],
    folders: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """With exit code 1."""
    for name in ("CACHE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    folder = tmp_path / "m"
    shutil.copytree(folders["MXFP8"], folder)
    config = json.loads((folder / "config.json").read_bytes())
    write_config(folder, config | {"quantization_config": 5})
    assert run(["inspect", str(folder), *more]) == 1
    (told,) = capsys.readouterr().err.splitlines()
    assert "quantization_config = 5" in told

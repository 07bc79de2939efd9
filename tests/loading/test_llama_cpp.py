"""llama.cpp itself, where its wheel is installed, reads our tests' files and real ones as we do.

Run with `pip install xllamacpp` (34 MB); without it every test here is skipped.
"""

import struct
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from unicodedata import normalize

import gguf
import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from numpy.typing import NDArray

from mtplx.loading.gguf_file import open_gguf
from mtplx.loading.gguf_model import gguf_model
from mtplx.loading.load import load
from mtplx.loading.tokenizer_gguf import tokenizer_from_gguf
from mtplx.quant.formats import BLOCK_FORMATS, BlockFormat
from mtplx.speculation import Target
from tests.blocks import Bytes, valid_blocks, weights_of
from tests.foreign import write_llama
from tests.loading import test_gguf_hybrids, test_gguf_qwen
from tests.loading.gguf_conversion import CASES, TOKENIZER, stored_weights, write_case
from tests.loading.llama_cpp import llama_cpp, needs_llama_cpp
from tests.loading.real_files import GEMMA3, QWEN2, RealFile, real_file
from tests.tiny import DIMS, random_prompt, tiny_target

pytestmark = needs_llama_cpp
PROMPT = random_prompt(40)
LENGTHS = (1, 2, 5, 17, 40)
DENSE = 5e-5  # rounding of float32, as against transformers
HALF = 5e-4  # one step of float16, which a number near the middle of two may go either way
_GELU = nn.gelu_approx


def ours(target: Target, token_ids: Sequence[int]) -> NDArray[np.float64]:
    """Log-probabilities of the token behind each one: [T, V]."""
    hidden = target.forward(mx.array(list(token_ids)), target.make_cache())
    logits = target.logits(target.normalise(hidden)).astype(mx.float32)
    return np.array(logits - mx.logsumexp(logits, axis=-1, keepdims=True), np.float64)


def furthest(path: Path, target: Target) -> float:
    """From llama.cpp's, of any token behind prompts of several lengths."""
    found = ours(target, PROMPT)
    with llama_cpp(path) as oracle:
        return max(
            float(np.abs(oracle.logprobs(PROMPT[:n], found.shape[1]) - found[n - 1]).max())
            for n in LENGTHS
        )


def gelu_of_half(x: mx.array) -> mx.array:
    """As llama.cpp has it, which looks it up in a table of float16."""
    half = x.astype(mx.float16).astype(mx.float32)
    return mx.array(_GELU(half).astype(mx.float16).astype(mx.float32))


@pytest.mark.parametrize("arch", CASES)
def test_logprobs_are_those_of_llama_cpp(
    arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the file that transformers' model is in: its layout is what llama.cpp takes it for."""
    monkeypatch.setattr(nn, "gelu_approx", gelu_of_half)
    weights = stored_weights(arch, test_gguf_hybrids.reference(arch)[0])
    path = write_case(tmp_path / "a.gguf", CASES[arch], weights)
    bound = HALF if arch == "gemma3" else DENSE
    assert furthest(path, gguf_model(open_gguf(path), 512, packed=False).target) < bound


@pytest.mark.parametrize("arch", ["qwen35", "qwen35moe"])
def test_a_head_stands_where_llama_cpp_looks_for_it(arch: str, tmp_path: Path) -> None:
    """It refuses a file whose head lacks a tensor."""
    trunk, head = test_gguf_hybrids.with_head(arch)
    whole = trunk | head
    path = write_case(tmp_path / "a.gguf", CASES[arch], whole, **test_gguf_hybrids.MORE)
    assert furthest(path, gguf_model(open_gguf(path), 512, packed=False).target) < DENSE


@pytest.mark.parametrize("case", test_gguf_qwen.CASES)
def test_logprobs_of_llama_types_are_those_of_llama_cpp(case: str, tmp_path: Path) -> None:
    """Biases, norms of heads and the order of their rows."""
    arch, more = test_gguf_qwen.CASES[case]
    weights = test_gguf_qwen.reference(arch, **more)[0]
    weights = {name: array for name, array in weights.items() if "o_proj.bias" not in name}
    path = test_gguf_qwen.write(tmp_path / "a.gguf", arch, weights)
    assert furthest(path, test_gguf_qwen.read(path, arch)) < DENSE


def test_stretched_wavelengths_are_those_of_llama_cpp(tmp_path: Path) -> None:
    """Factors that a file brings along divide the frequencies."""
    stretched = {"rope_parameters": test_gguf_qwen.STRETCHED}
    weights, _, factors = test_gguf_qwen.reference("llama", **stretched)
    path = test_gguf_qwen.write(tmp_path / "a.gguf", "llama", weights, factors)
    assert furthest(path, test_gguf_qwen.read(path, "llama")) < DENSE


WIDE = replace(DIMS, hidden_size=256, head_dim=64, mlp_size=256)


def with_output(path: Path, fmt: BlockFormat, blocks: Bytes, norm: float) -> Path:
    """A llama whose last matrix is of these blocks. norm: what the final one multiplies by."""
    named = fmt.name if fmt.name in gguf.GGMLQuantizationType.__members__ else "Q4_0"
    write_llama(
        path,
        tiny_target(dims=WIDE),
        lambda name: named if name == "output.weight" else "F32",
        tensors={"output.weight": blocks, "output_norm.weight": np.full(256, norm, np.float32)},
        metadata=TOKENIZER,
    )
    file = path / "tiny.gguf"
    if named != fmt.name:  # in the header alone, where the package does not know the type
        width = blocks.shape[1] // 18 * 32
        entry = b"output.weight" + struct.pack("<IQQI", 2, width, 64, 2)
        whole = file.read_bytes()
        assert entry in whole
        stated = b"output.weight" + struct.pack("<IQQI", 2, 256, 64, fmt.number)
        file.write_bytes(whole.replace(entry, stated))
    return file


@pytest.mark.parametrize("kind", BLOCK_FORMATS)
def test_weights_of_any_type_are_those_of_llama_cpp(kind: str, tmp_path: Path) -> None:
    """Random blocks as the last matrix; two of their weights exchanged would be seen.

    llama.cpp rounds that matrix's input to 8 bits, and we do not. So each input is off by a part of
    a step, the 127th of the largest one, and a logit by what that comes to in all.
    """
    fmt = BLOCK_FORMATS[kind]
    blocks = valid_blocks(fmt, 64 * 256 // fmt.block, seed=3)
    if kind == "MXFP4":
        blocks[:, 0] = 120 + blocks[:, 0] % 8  # sizes that can be added up
    weights = weights_of(fmt, blocks).reshape(64, 256)
    largest = np.linalg.norm(weights, axis=1).max()
    path = with_output(tmp_path, fmt, blocks.reshape(64, -1), float(10 / largest))
    target = gguf_model(open_gguf(path), 512, packed=False).target
    hidden = np.array(target.normalise(target.forward(mx.array(PROMPT), target.make_cache())))
    deviation = largest * np.abs(hidden).max() / 127 / 12**0.5
    bound = 10 * deviation
    assert furthest(path, target) < bound
    exchanged = weights.reshape(64, -1, 2)[..., ::-1].reshape(64, 256)
    assert np.abs(hidden @ (exchanged - weights).T).max() > 10 * bound


MIXED = {"attn_v": "Q4_K", "ffn_down": "Q4_K", "attn_k": "Q8_0", "ffn_up": "Q8_0", "output": "Q8_0"}


def q4_k(seed: int) -> Bytes:
    """Random weights of about the size that a matrix of 256 columns has, [256, 144]."""
    blocks = valid_blocks(BLOCK_FORMATS["Q4_K"], 256, seed)
    blocks[:, :4] = np.array([3e-4, 2.2e-3], np.float16).view(np.uint8)  # their middle is zero
    return blocks


def test_a_file_of_mixed_types_is_what_llama_cpp_takes_it_for(tmp_path: Path) -> None:
    """Every matrix in 4 or 8 bits, all inputs in 8: far less than one other matrix makes."""
    dims = replace(WIDE, num_kv_heads=4)

    def kind_of(name: str) -> str:
        return "F32" if "norm" in name else MIXED.get(name.split(".")[-2], "Q4_0")

    blocks = {f"blk.{i}.{name}.weight": q4_k(i) for i in (0, 1) for name in ("attn_v", "ffn_down")}
    other = blocks | {"blk.0.attn_v.weight": q4_k(5)}
    paths = []
    for name, tensors in (("a", blocks), ("b", other)):
        (tmp_path / name).mkdir()
        written = write_llama(
            tmp_path / name, tiny_target(dims=dims), kind_of, tensors=tensors, metadata=TOKENIZER
        )
        paths.append(written)
    targets = [gguf_model(open_gguf(path), 512, packed=False).target for path in paths]
    assert furthest(paths[0], targets[0]) < 0.2
    assert furthest(paths[0], targets[1]) > 1


# What tokenizers have gone wrong on: marks of turns, spaces, line ends, digits, contractions, marks
# that join, scripts without spaces, control characters, pieces that are spelled as bytes.
PARTS = (
    *(
        "a",
        "B",
        "ing",
        "Q",
        "don't",
        "'s",
        "'LL",
        "def f(x):",
        "1,000.5",
        "0",
        "123",
        "\u0661\u0662",
    ),
    *(" ", "  ", "\n", "\r\n", "\t", "\u00a0", "\u3000", "\u200b", "\u0085", "\u2028", "\ufeff"),
    *(
        "\u00e9",
        "e\u0301",
        "\u212b",
        "\ufb01",
        "\u01c5",
        "\u00bd",
        "\u2460",
        "\u4e2d\u6587",
        "\ud55c",
    ),
    *("\u1100\u1161", "\u05e9\u05b7", "\u0e01\u0e33", "\u0915\u094d\u0937", "\U00010fff", "\ufffd"),
    *("\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\u200d", "\U000e0001"),
    *("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|file_sep|>", "<think>", "<start_of_turn>"),
    *("<bos>", "<eos>", "<s>", "<unused1>", "<h1>", "[multimodal]", "<0x41>", "\u2581", "\u0120"),
    *("\x00", "\x1b[0m", "...", "!!", "--", "$", "_", "\\"),
)


def hostile_texts() -> list[str]:
    rng = Random(3)
    mixed = ["".join(rng.choices(PARTS, k=rng.randint(2, 9))) for _ in range(200)]
    return ["", *PARTS, *(f" {part}" for part in PARTS), *mixed]


def assert_tokens_agree(path: Path, texts: Sequence[str]) -> None:
    tokenizer = tokenizer_from_gguf(open_gguf(path).metadata)
    with llama_cpp(path) as oracle:
        differing = [text for text in texts if tokenizer.encode_prompt(text) != oracle.tokens(text)]
    assert differing == []


def test_tokens_are_those_of_llama_cpp(smollm2_path: Path) -> None:
    """The default model's, of texts that are hard to cut."""
    assert_tokens_agree(smollm2_path, hostile_texts())


@pytest.mark.slow
def test_gemmas_tokens_are_those_of_llama_cpp(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """`</s>` is left out: a tag of HTML to the model, and the end of a text to llama.cpp."""
    fetches = bool(pytestconfig.getoption("--real-files"))
    assert_tokens_agree(real_file(GEMMA3, tmp_path, fetches=fetches), hostile_texts())


@pytest.mark.slow
def test_qwens_tokens_are_those_of_llama_cpp(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """In form NFC, to which the model's own tokenizer brings a text and llama.cpp does not."""
    fetches = bool(pytestconfig.getoption("--real-files"))
    texts = [normalize("NFC", text) for text in hostile_texts()]
    assert_tokens_agree(real_file(QWEN2, tmp_path, fetches=fetches), texts)


PASSAGE = (
    "Call me Ishmael. Some years ago, never mind how long precisely, having little or no money in "
    "my purse, and nothing particular to interest me on shore, I thought I would sail about a "
    "little and see the watery part of the world."
)


def divergence(path: Path) -> float:
    """The largest Kullback-Leibler divergence from llama.cpp's next token, in nats."""
    model = load(path)
    token_ids = model.tokenizer.encode_prompt(PASSAGE)
    found = ours(model.target, token_ids)
    with llama_cpp(path) as oracle:
        divergences = []
        for length in (1, 13, len(token_ids)):
            theirs = oracle.logprobs(token_ids[:length], found.shape[1])
            assert theirs.argmax() == found[length - 1].argmax()
            divergences.append(float(np.exp(theirs) @ (theirs - found[length - 1])))
    return max(divergences)


@pytest.mark.slow
def test_the_default_model_is_what_llama_cpp_takes_it_for(smollm2_path: Path) -> None:
    """But for inputs in 8 bits: measured at 0.007."""
    assert divergence(smollm2_path) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("file", [GEMMA3, QWEN2], ids=["gemma3", "qwen2"])
def test_real_files_are_what_llama_cpp_takes_them_for(
    file: RealFile, tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """But for inputs in 8 bits: measured at up to 0.016."""
    fetches = bool(pytestconfig.getoption("--real-files"))
    assert divergence(real_file(file, tmp_path, fetches=fetches)) < 0.04

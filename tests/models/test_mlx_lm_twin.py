"""mlx-lm's model over a target's weights computes what the target computes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mtplx.bench.ceiling import weight_bytes_per_token
from mtplx.models.llama import LlamaBlock, LlamaTarget
from mtplx.models.matrix import GROUP_SIZE, AffineMatrix, Matrix
from mtplx.models.mlx_lm_target import MlxLmTarget, mlx_lm_target
from mtplx.models.mlx_lm_twin import mlx_lm_twin, split_rows
from tests.tiny import DIMS, close, random_matrix, random_prompt, tiny_target

pytestmark = pytest.mark.slow  # importing mlx_lm takes seconds


def packed(matrix: Matrix) -> AffineMatrix:
    """The matrix in 8 bits, in groups of 32."""
    codes, scales, biases = mx.quantize(matrix.arrays()[0], group_size=GROUP_SIZE, bits=8)
    return AffineMatrix(codes, scales, biases, 8)


def packed_target(target: LlamaTarget) -> LlamaTarget:
    def block(dense: LlamaBlock) -> LlamaBlock:
        return replace(
            dense,
            qkv=packed(dense.qkv),
            output=packed(dense.output),
            gate_up=packed(dense.gate_up),
            down=packed(dense.down),
        )

    return replace(
        target,
        embedding=packed(target.embedding),
        blocks=tuple(block(dense) for dense in target.blocks),
        lm_head=packed(target.lm_head),
    )


WIDE = replace(DIMS, mlp_size=64)  # whole groups of 32 along every row
TARGETS = {
    "dense": tiny_target(),
    "packed": packed_target(tiny_target(dims=WIDE)),
}
TARGETS["tied"] = replace(TARGETS["dense"], lm_head=TARGETS["dense"].embedding)


def logits_of(target: Any, token_ids: mx.array, cache: Any) -> mx.array:
    return target.logits(target.normalise(target.forward(token_ids, cache)))  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", TARGETS)
def test_the_twins_logits_are_the_targets(kind: str) -> None:
    """In prefill and step by step, to rounding."""
    target = TARGETS[kind]
    twin = mlx_lm_twin(target)
    prompt = random_prompt(40)
    ours, theirs = target.make_cache(), twin.make_cache()
    for block in (prompt[:30], prompt[30:34], *([token_id] for token_id in prompt[34:])):
        token_ids = mx.array(block)
        expected = logits_of(target, token_ids, ours)
        found = twin(token_ids[None], cache=theirs)[0]
        assert found.dtype == expected.dtype
        assert close(found, expected)


@pytest.mark.parametrize("kind", TARGETS)
def test_the_twin_holds_the_targets_weights_and_no_others(kind: str) -> None:
    """As many bytes, in the same types, and no memory of its own for them."""
    target = TARGETS[kind]
    mx.eval(target.arrays())
    before = mx.get_active_memory()
    twin = mlx_lm_twin(target)
    assert mx.get_active_memory() - before < 0.1 * sum(a.nbytes for a in target.arrays())

    def sizes(arrays: list[mx.array]) -> dict[str, int]:
        by_type: dict[str, int] = {}
        for array in arrays:
            by_type[str(array.dtype)] = by_type.get(str(array.dtype), 0) + array.nbytes
        return by_type

    from mlx.utils import tree_flatten

    flat: dict[str, mx.array] = dict(tree_flatten(twin.parameters()))
    assert sizes(list(flat.values())) == sizes(target.arrays())


@pytest.mark.parametrize("matrix", [random_matrix(np.random.default_rng(0), 24, 64)], ids=["dense"])
@pytest.mark.parametrize("pack", [False, True])
def test_rows_split_and_joined_again_are_the_same_matrix(matrix: Matrix, pack: bool) -> None:
    """Each part is the rows it is named after, in order, to the last bit."""
    whole: Matrix = packed(matrix) if pack else matrix
    parts = split_rows(whole, [16, 4, 4])
    assert [part.shape for part in parts] == [(16, 64), (4, 64), (4, 64)]
    for place, array in enumerate(whole.arrays()):
        joined = mx.concatenate([part.arrays()[place] for part in parts])
        assert mx.array_equal(joined, array).item()


def lifted(twin: Any) -> MlxLmTarget:
    """A model of mlx-lm's as a target, its final norm lifted out."""
    return mlx_lm_target(twin, {}, "the twin")


@pytest.mark.parametrize("kind", TARGETS)
def test_a_model_of_mlx_lms_own_gets_its_final_norm_back(kind: str) -> None:
    """The twin of a target that mlx-lm loaded is whole again, and the target goes on without."""
    expected = mlx_lm_twin(TARGETS[kind])
    target = lifted(mlx_lm_twin(TARGETS[kind]))
    token_ids = mx.array(random_prompt(9))
    twin = mlx_lm_twin(target)
    assert mx.array_equal(twin(token_ids[None]), expected(token_ids[None])).item()
    found = logits_of(target, token_ids, target.make_cache())
    assert close(found, expected(token_ids[None])[0])


@pytest.mark.parametrize("kind", TARGETS)
def test_a_pass_reads_the_same_bytes_whoever_holds_the_weights(kind: str) -> None:
    """Bytes per token do not depend on whether the model is ours or mlx-lm's."""
    target = lifted(mlx_lm_twin(TARGETS[kind]))
    assert weight_bytes_per_token(target) == weight_bytes_per_token(TARGETS[kind])


def test_mlx_lm_says_what_the_default_model_says(smollm2_path: Path) -> None:
    """Greedy text of the real model, through mlx-lm's own functions and through ours."""
    from mlx_lm.generate import stream_generate

    from mtplx.generate import encode_prompt, generate
    from mtplx.loading.load import load
    from mtplx.loading.mlx_lm_tokenizer import mlx_lm_tokenizer

    model = load(smollm2_path)
    twin, tokenizer = mlx_lm_twin(model.target), mlx_lm_tokenizer(model.tokenizer)
    for prompt in ("Why is the sky blue?", "List three prime numbers."):
        ids = mx.array(encode_prompt(model.tokenizer, prompt))
        ours = generate(model, prompt, temperature=0.0, max_tokens=16, depth=0)
        responses = list(stream_generate(twin, tokenizer, ids, max_tokens=16))
        assert [response.token for response in responses] == list(ours.token_ids)
        # Its detokenizer leaves out the space before the first word.
        assert "".join(response.text for response in responses) == ours.text.removeprefix(" ")

"""mlx-lm's own model over a target's weights, to compare the two decode loops and nothing else.

The arrays are shared, not copied: parts of a joined product are views of its rows.
"""

import copy
import importlib
from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import mlx.core as mx
import mlx.nn as nn

from mtplx.errors import UnsupportedTensorError
from mtplx.models.llama import LlamaBlock, LlamaDims, LlamaTarget
from mtplx.models.matrix import GROUP_SIZE, AffineMatrix, DenseMatrix, Matrix
from mtplx.models.packed_matrix import PackedMatrix
from mtplx.speculation import Target

if TYPE_CHECKING:
    from mtplx.models.mlx_lm_target import MlxLmTarget


def mlx_lm_twin(target: Target) -> Any:
    """The mlx_lm Model that computes what `target` computes, for mlx_lm's generation functions.

    Its weights are the target's in value, dtype and packing. Takes seconds where mlx_lm has not
    been imported yet. Raises UnsupportedTensorError for a target of a kind mlx-lm has not.
    """
    from mtplx.models.mlx_lm_target import MlxLmTarget

    if isinstance(target, LlamaTarget):
        return _llama(target)
    if isinstance(target, MlxLmTarget):
        return _with_final_norm(target)
    raise UnsupportedTensorError(
        f"mlx-lm has no model like {type(target).__name__}, so there is nothing to compare with."
    )


def split_rows(matrix: Matrix, counts: Sequence[int]) -> list[Matrix]:
    """Consecutive rows of a matrix as matrices of their own, `counts` rows each."""
    ends = list(accumulate(counts))[:-1]
    matrix = _known(matrix)
    if isinstance(matrix, DenseMatrix):
        return [DenseMatrix(part) for part in mx.split(matrix.weight, ends)]
    parts = zip(*(mx.split(array, ends) for array in matrix.arrays()), strict=True)
    return [AffineMatrix(codes, scales, biases, matrix.bits) for codes, scales, biases in parts]


def _llama(target: LlamaTarget) -> Any:
    dims, first = target.dims, target.blocks[0]
    if dims.rope_factors:
        raise UnsupportedTensorError(
            "mlx-lm has no model with these stretched rotary wavelengths, so there is nothing to "
            "compare with."
        )
    is_tied = target.lm_head is target.embedding
    kind = "llama" if first.qk_norm is None else "qwen3"
    if first.qkv_bias is not None:
        kind = "qwen2"
    family = importlib.import_module(f"mlx_lm.models.{kind}")
    # The arrays that the constructor draws at random are replaced before anything computes them.
    model = family.Model(
        family.ModelArgs.from_dict(
            {
                "model_type": kind,
                "hidden_size": dims.hidden_size,
                "num_hidden_layers": dims.num_layers,
                "intermediate_size": dims.mlp_size,
                "num_attention_heads": dims.num_heads,
                "num_key_value_heads": dims.num_kv_heads,
                "head_dim": dims.head_dim,
                "rms_norm_eps": dims.norm_eps,
                "rope_theta": dims.rope_base,
                "max_position_embeddings": dims.context_length,
                "vocab_size": dims.vocab_size,
                "tie_word_embeddings": is_tied,
            }
        )
    )
    for layer, block in zip(model.model.layers, target.blocks, strict=True):
        _fill_attention(layer.self_attn, dims, block)
        mlp = layer.mlp
        gate, up = split_rows(block.gate_up, [dims.mlp_size, dims.mlp_size])
        mlp.gate_proj, mlp.up_proj, mlp.down_proj = _linear(gate), _linear(up), _linear(block.down)
        layer.input_layernorm.weight = block.attention_norm
        layer.post_attention_layernorm.weight = block.mlp_norm
    model.model.embed_tokens = _embedding(target.embedding)
    model.model.norm.weight = target.final_norm
    if not is_tied:
        model.lm_head = _linear(target.lm_head)
    mx.eval(model.parameters())
    return model


def _fill_attention(attention: Any, dims: LlamaDims, block: LlamaBlock) -> None:
    q_rows, kv_rows = dims.num_heads * dims.head_dim, dims.num_kv_heads * dims.head_dim
    parts = list(map(_linear, split_rows(block.qkv, [q_rows, kv_rows, kv_rows])))
    if block.qkv_bias is not None:
        biases = mx.split(block.qkv_bias, [q_rows, q_rows + kv_rows])
        for part, bias in zip(parts, biases, strict=True):
            part.bias = bias
    attention.q_proj, attention.k_proj, attention.v_proj = parts
    attention.o_proj = _linear(block.output)
    if block.qk_norm is not None:
        attention.q_norm.weight = block.qk_norm[0, 0]
        attention.k_norm.weight = block.qk_norm[-1, 0]


def _known(matrix: Matrix) -> DenseMatrix | AffineMatrix:
    """The matrix as one that mlx-lm has modules for. Raises UnsupportedTensorError."""
    if isinstance(matrix, DenseMatrix | AffineMatrix):
        return matrix
    if isinstance(matrix, PackedMatrix) and matrix.weight.packing.files == ("floats",):
        ((_, dtype),) = matrix.weight.packing.template
        assert isinstance(dtype, mx.Dtype)
        return DenseMatrix(matrix.weight.codes.view(dtype))
    raise UnsupportedTensorError(
        "mlx-lm cannot multiply weights that are packed as these are, so there is nothing to "
        "compare with."
    )


def _linear(matrix: Matrix) -> nn.Module:
    matrix = _known(matrix)
    if isinstance(matrix, DenseMatrix):
        dense = nn.Linear(1, 1, bias=False)
        dense.weight = matrix.weight
        return dense
    return _filled(nn.QuantizedLinear(GROUP_SIZE, 1, False, GROUP_SIZE, matrix.bits), matrix)


def _embedding(matrix: Matrix) -> nn.Module:
    matrix = _known(matrix)
    if isinstance(matrix, DenseMatrix):
        dense = nn.Embedding(1, 1)
        dense.weight = matrix.weight
        return dense
    return _filled(nn.QuantizedEmbedding(1, GROUP_SIZE, GROUP_SIZE, matrix.bits), matrix)


def _filled(module: Any, matrix: AffineMatrix) -> nn.Module:
    module.weight, module.scales, module.biases = matrix.arrays()
    return module  # type: ignore[no-any-return]  # either kind of quantised module


def _with_final_norm(target: "MlxLmTarget") -> Any:
    """The model as mlx-lm loaded it; the one in use keeps going without its norm."""
    from mtplx.models.mlx_lm_target import NORMS, TRUNKS, WRAPPERS, name_of

    model, trunk = copy.copy(target.model), copy.copy(target.trunk)
    trunk[name_of(trunk, NORMS)] = target.final_norm
    outer, wrapper = model, name_of(model, WRAPPERS)
    if wrapper is not None:
        outer = model[wrapper] = copy.copy(model[wrapper])
    outer[name_of(outer, TRUNKS)] = trunk
    return model

"""The default model in every type that the gguf package can write: it still says what it did."""

from pathlib import Path

import gguf
import mlx.core as mx
import numpy as np
import pytest

from mtplx.loading.gguf_file import open_gguf
from mtplx.loading.gguf_llama import llama_dims, llama_target
from mtplx.loading.gguf_tensors import gguf_tensors
from mtplx.loading.tokenizer_gguf import tokenizer_from_gguf

TEXT = (
    "The Industrial Revolution was the transition to new manufacturing processes in Great Britain, "
    "continental Europe, and the United States, in the period from about 1760 to 1840. This "
    "transition included going from hand production methods to machines, new chemical "
    "manufacturing and iron production processes, and the rise of the factory system."
)
# By how much a type may raise the perplexity of TEXT: as was measured, with room. They are the
# losses of the gguf package's quantisers, which round to the nearest code; the weights had been in
# Q4_1 before, whose codes lie between those of Q5. Ternary types make noise of a model that was
# not trained for them, so they are left out, and so are F16 and BF16, which lose nothing.
MOST = {"Q8_0": 1.01, "Q5_1": 1.3, "Q5_0": 1.32, "Q4_1": 1.01, "Q4_0": 1.15, "MXFP4": 1.6}


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> Path:
    return smollm2_path


def perplexity(path: Path) -> float:
    """Of TEXT, by a model's own tokenizer."""
    file = open_gguf(path)
    target = llama_target(gguf_tensors(file, packed=False), llama_dims(file.metadata))
    token_ids = tokenizer_from_gguf(file.metadata).encode(TEXT, parse_special=False)
    hidden = target.forward(mx.array(token_ids[:-1]), target.make_cache())
    logits = target.logits(target.normalise(hidden))
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    found = mx.take_along_axis(logprobs, mx.array(token_ids[1:])[:, None], axis=-1)
    return float(np.exp(-np.array(found).mean()))


def requantised(source: Path, target: Path, kind: str) -> Path:
    """The model with every matrix in another type, by way of its weights."""
    stored = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(target, "llama")
    for name, fieldname in stored.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            types = fieldname.types
            sub_type = types[-1] if len(types) > 1 else None
            writer.add_key_value(name, fieldname.contents(), types[0], sub_type=sub_type)
    quantisation = gguf.GGMLQuantizationType[kind]
    for tensor in stored.tensors:
        if tensor.name == "token_embd.weight":  # as real files have it: in eight bits
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
            continue
        weights = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if weights.ndim < 2:
            writer.add_tensor(tensor.name, np.asarray(weights, np.float32))
            continue
        raw = gguf.quants.quantize(np.asarray(weights, np.float32), quantisation)
        writer.add_tensor(tensor.name, raw, raw_dtype=quantisation)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


@pytest.mark.slow
def test_no_type_loses_more_than_it_is_known_to(model: Path, tmp_path: Path) -> None:
    """Read back through the whole of loading."""
    as_it_is = perplexity(model)
    for kind, most in MOST.items():
        path = requantised(model, tmp_path / "m.gguf", kind)
        assert perplexity(path) < most * as_it_is, kind
        path.unlink()

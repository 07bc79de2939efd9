"""llama.cpp in this process, through the wheel xllamacpp: what its own programs make of a file."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import numpy as np
import pytest
from numpy.typing import NDArray

needs_llama_cpp = pytest.mark.skipif(
    find_spec("xllamacpp") is None, reason="needs llama.cpp: pip install xllamacpp"
)


class LlamaCpp:
    """A model that is served. Everything is computed in float32, caches included."""

    def __init__(self, server: Any) -> None:
        self._server = server

    def logprobs(self, token_ids: Sequence[int], vocab_size: int) -> NDArray[np.float64]:
        """Of the token behind `token_ids`, before any filter: [vocab_size]."""
        answer = self._server.handle_completions(
            {
                "prompt": list(token_ids),
                "n_predict": 1,
                "n_probs": vocab_size,
                "temperature": 0,
                "cache_prompt": False,
            }
        )
        found = np.full(vocab_size, np.nan)
        for each in answer["choices"][0]["logprobs"]["content"][0]["top_logprobs"]:
            found[each["id"]] = each["logprob"]
        return found

    def written(self, token_ids: Sequence[int], num_tokens: int) -> tuple[list[int], int]:
        """The likeliest tokens one after the other, and how many of them were drafted."""
        answer = self._server.handle_completions(
            {
                "prompt": list(token_ids),
                "n_predict": num_tokens,
                "n_probs": 1,
                "temperature": 0,
                "cache_prompt": False,
                "ignore_eos": True,
            }
        )
        tokens = answer["choices"][0]["logprobs"]["content"]
        return [each["id"] for each in tokens], int(answer["timings"]["draft_n_accepted"])

    def tokens(self, text: str) -> list[int]:
        """Of a prompt: markers of turns in it are text, and what begins every prompt is there."""
        body = {"content": text, "add_special": True, "parse_special": False}
        request = Request(
            f"{self._server.listening_address}/tokenize",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urlopen(request, timeout=60) as answer:
            return list(json.load(answer)["tokens"])


@contextmanager
def llama_cpp(path: Path, *, drafts: bool = False) -> Iterator[LlamaCpp]:
    """The file's model, its head included. drafts: one token a round."""
    xllamacpp = import_module("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx, params.n_parallel, params.cpuparams.n_threads = 512, 1, 1
    params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.fit_params = params.warmup = False
    params.load_mtp = True
    params.verbosity = -1
    if drafts:
        kinds = xllamacpp.common_speculative_type
        params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_MTP]
        params.speculative.draft.n_max = 1
        params.speculative.draft.p_min = 0.0
    server = xllamacpp.Server(params)
    try:
        yield LlamaCpp(server)
    finally:
        del server

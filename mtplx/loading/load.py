"""A model ready to decode: trunk, MTP head if there is one for it, tokenizer."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from mtplx.errors import HeadError
from mtplx.loading.find_head import find_head
from mtplx.loading.fingerprint import fingerprint
from mtplx.loading.gguf_file import gguf_tensors, open_gguf
from mtplx.loading.gguf_llama import llama_dims, llama_target
from mtplx.loading.gguf_metadata import gguf_metadata
from mtplx.loading.head_file import HeadFile, read_head
from mtplx.loading.resolve import resolve
from mtplx.loading.tokenizer import Tokenizer
from mtplx.loading.tokenizer_folder import tokenizer_from_folder
from mtplx.loading.tokenizer_gguf import tokenizer_from_gguf
from mtplx.models.head import HeadDrafter, Shortlist, make_shortlist, widen
from mtplx.models.llama import LlamaTarget
from mtplx.speculation import Target
from mtplx.state import DecodeState

Progress = Callable[[int, int, str], None]
DEFAULT_DEPTH = 2  # what pays on most machines until a profile says better


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What `load` gives. Shared by any number of decode states.

    head: None where there is none for this trunk; `no_head_reason` then says why in one line.
    """

    name: str
    path: Path
    target: Target
    tokenizer: Tokenizer
    head: HeadFile | None
    no_head_reason: str | None
    shortlist: Shortlist | None
    load_s: float

    @property
    def can_draft(self) -> bool:
        return self.head is not None

    def new_state(self, prompt_ids: list[int] | None = None) -> DecodeState:
        """Empty caches, and a drafter that may also draft the tokens of `prompt_ids`."""
        drafter = None
        if self.head is not None and self.shortlist is not None:
            assert isinstance(self.target, LlamaTarget)
            shortlist = widen(self.shortlist, self.target.lm_head, prompt_ids or [])
            drafter = HeadDrafter(self.target, self.head.weights, shortlist)
        return DecodeState(self.target, drafter)


def load(
    model: str | Path = "smollm2",
    *,
    head: str | Path | None = None,
    progress: Progress | None = None,
) -> LoadedModel:
    """Load a GGUF file, a folder of safetensors, a Hugging Face id or an alias.

    head: an MTP head's file; by default one is looked for beside the model, among those trained
        here, and in this package. progress(done_bytes, total_bytes, what) follows a download.
    Raises ModelNotFoundError, DownloadError, CheckpointError and its kinds, FileAccessError.
    """
    started_s = time.perf_counter()
    path = resolve(str(model), progress=progress)
    target, tokenizer = _gguf(path) if path.is_file() else _folder(path)
    found: HeadFile | None = None
    reason: str | None = None
    if isinstance(target, LlamaTarget):
        found, reason = _head(path, target, Path(head) if head is not None else None)
    elif head is not None:
        raise HeadError(f"{head}: heads are for llama-type trunks, which {path} is not.")
    else:
        reason = "no MTP head is known for this architecture, so it decodes plainly."
    shortlist = None
    if found is not None and isinstance(target, LlamaTarget):
        shortlist = make_shortlist(target.lm_head, found.shortlist)
    return LoadedModel(
        name=str(model),
        path=path,
        target=target,
        tokenizer=tokenizer,
        head=found,
        no_head_reason=reason,
        shortlist=shortlist,
        load_s=time.perf_counter() - started_s,
    )


def _gguf(path: Path) -> tuple[LlamaTarget, Tokenizer]:
    reader = open_gguf(path)
    metadata = gguf_metadata(reader)
    # MLX multiplies packed weights well on a GPU; on a CPU its packed kernels are many times
    # slower than a BLAS over the expanded weights.
    tensors = gguf_tensors(reader, packed=mx.metal.is_available())
    target = llama_target(tensors, llama_dims(metadata))
    mx.async_eval(target.arrays())  # expands the weights while the tokenizer is built
    tokenizer = tokenizer_from_gguf(metadata)
    mx.eval(target.arrays())
    return target, tokenizer


def _folder(path: Path) -> tuple[Target, Tokenizer]:
    from mtplx.models.mlx_lm_target import mlx_lm_target

    return mlx_lm_target(path), tokenizer_from_folder(path)


def _head(
    path: Path, target: LlamaTarget, given: Path | None
) -> tuple[HeadFile | None, str | None]:
    trunk = fingerprint(path)
    chosen = given if given is not None else find_head(path, trunk)
    if chosen is None:
        return None, (
            "no MTP head was found for this model, so it decodes plainly. "
            f"`mtplx train-head {path}` makes one."
        )
    head = read_head(chosen, target.dims)
    if head.trunk != trunk:
        raise HeadError(
            f"{chosen} was trained for another model (trunk {head.trunk or 'not stated'}, this "
            f"one is {trunk}). Remove it, or train one with `mtplx train-head {path}`."
        )
    mx.eval(head.weights.arrays())
    return head, None

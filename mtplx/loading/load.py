"""A model ready to decode: trunk, MTP head if there is one for it, tokenizer."""

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import mlx.core as mx

from mtplx.errors import FileAccessError, HeadError, MemoryLimitError
from mtplx.loading.find_head import head_candidates
from mtplx.loading.fingerprint import fingerprint
from mtplx.loading.memory import MemoryNeed, memory_limit_bytes
from mtplx.loading.progress import Progress
from mtplx.loading.resolve import NOWHERE, Places, resolve
from mtplx.models.head import HeadDrafter, Shortlist, make_shortlist, widen
from mtplx.models.llama import LlamaTarget
from mtplx.speculation import Target
from mtplx.state import DecodeState

if TYPE_CHECKING:
    from mtplx.loading.head_file import HeadFile
    from mtplx.loading.tokenizer import Tokenizer

SMALLEST_CONTEXT = 256  # a conversation with less is none
DEFAULT_DEPTH = 2  # what pays on most machines until a profile says better


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What `load` gives. Shared by any number of decode states.

    head: None where there is none for this trunk; `no_head_reason` then says why in one line.
    context_note: why the target's context is shorter than the model's own, in one line; else None.
    """

    name: str
    path: Path
    target: Target
    tokenizer: "Tokenizer"
    head: "HeadFile | None"
    no_head_reason: str | None
    shortlist: Shortlist | None
    load_s: float
    context_note: str | None = None

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
    places: Places = NOWHERE,
    memory_bytes: int | None = None,
    progress: Progress | None = None,
) -> LoadedModel:
    """Load a GGUF file, a folder of safetensors, a Hugging Face id or an alias.

    head: an MTP head's file; by default one is looked for beside the model, among those trained
        here, and in this package. places: where else models are, and what they are called.
    memory_bytes: what the model and its context may take; by default what this machine allows.
    progress(done_bytes, total_bytes, what) follows a download.
    Raises ModelNotFoundError, DownloadError, CheckpointError and its kinds, MemoryLimitError and
    FileAccessError.
    """
    started_s = time.perf_counter()
    path = resolve(str(model), places=places, progress=progress)
    given = Path(head) if head is not None else None
    limit = memory_limit_bytes() if memory_bytes is None else memory_bytes
    target, tokenizer, context_note = (_gguf if path.is_file() else _folder)(path, limit)
    found: HeadFile | None = None
    reason: str | None = None
    if isinstance(target, LlamaTarget):
        found, reason = _head(path, target, given)
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
        context_note=context_note,
    )


def _gguf(path: Path, limit: int) -> "tuple[LlamaTarget, Tokenizer, str | None]":
    from mtplx.loading.describe import gguf_memory
    from mtplx.loading.gguf_file import open_gguf
    from mtplx.loading.gguf_llama import llama_dims, llama_target
    from mtplx.loading.gguf_tensors import gguf_tensors
    from mtplx.loading.tensor_list import gguf_entries
    from mtplx.loading.tokenizer_gguf import tokenizer_from_gguf

    file = open_gguf(path)
    metadata = file.metadata
    # MLX multiplies packed weights well on a GPU; on a CPU its packed kernels are many times
    # slower than a BLAS over the expanded weights.
    packed = mx.metal.is_available()
    tensors = gguf_tensors(file, packed=packed)
    dims = llama_dims(metadata)
    need = gguf_memory(metadata, gguf_entries(file), None, packed=packed)
    context, note = _fitting_context(path, need, dims.context_length, limit)
    target = llama_target(tensors, replace(dims, context_length=context))
    mx.eval(target.arrays())
    return target, tokenizer_from_gguf(metadata), note


def _folder(path: Path, limit: int) -> "tuple[Target, Tokenizer, str | None]":
    from mtplx.loading.describe import folder_memory
    from mtplx.loading.tokenizer_folder import tokenizer_from_folder
    from mtplx.models.mlx_lm_target import mlx_lm_target

    need = folder_memory(path)
    _fitting_context(path, need, 1, limit)  # before anything of any size is read
    target = mlx_lm_target(path)
    context, note = _fitting_context(path, need, target.context_length, limit)
    return replace(target, context_length=context), tokenizer_from_folder(path), note


def _fitting_context(
    path: Path, need: MemoryNeed, context_length: int, limit: int
) -> tuple[int, str | None]:
    """How many tokens the model may be given here, and why not all that it knows."""
    if need.held_bytes > limit:
        raise MemoryLimitError(
            f"{path} takes {_gb(need.held_bytes)} of memory before any text, and {_gb(limit)} "
            "are there for it. Use a smaller model or one with fewer bits per weight."
        )
    fitting = need.largest_context(limit)
    if fitting is None or fitting >= context_length:
        return context_length, None
    if fitting < min(SMALLEST_CONTEXT, context_length):
        raise MemoryLimitError(
            f"{path} takes {_gb(need.held_bytes)} of memory, and what is left of {_gb(limit)} "
            f"holds {fitting} tokens of text. Use a smaller model or one with fewer bits per "
            "weight."
        )
    return fitting, (
        f"The context is limited to {fitting:,} of {context_length:,} tokens: more does not fit "
        f"into {_gb(limit)} of memory."
    )


def _gb(num_bytes: int) -> str:
    return f"{num_bytes / 1e9:,.1f} GB"


def _head(
    path: Path, target: LlamaTarget, given: Path | None
) -> "tuple[HeadFile | None, str | None]":
    """A head for the trunk, or why there is none. One that was asked for has to fit."""
    trunk = fingerprint(path)
    if given is not None:
        return _fitting_head(given, path, target, trunk), None
    problems = []
    for candidate in head_candidates(path, trunk):
        try:
            return _fitting_head(candidate, path, target, trunk), None
        except (HeadError, FileAccessError) as error:
            problems.append(str(error))
    if problems:
        return None, f"the MTP head that is there cannot be used. {problems[0]}"
    return None, (
        "no MTP head was found for this model, so it decodes plainly. "
        f"`mtplx train-head {path}` makes one."
    )


def _fitting_head(file: Path, path: Path, target: LlamaTarget, trunk: str) -> "HeadFile":
    from mtplx.loading.head_file import read_head

    head = read_head(file, target.dims)
    if head.trunk != trunk:
        raise HeadError(
            f"{file} was trained for another model (trunk {head.trunk or 'not stated'}, this "
            f"one is {trunk}). Remove it, or train one with `mtplx train-head {path}`."
        )
    mx.eval(head.weights.arrays())
    return head

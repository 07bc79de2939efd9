"""A model ready to decode: trunk, MTP head if there is one for it, tokenizer."""

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import mlx.core as mx

from mtplx.costs import Tuned
from mtplx.errors import FileAccessError, HeadError, MemoryLimitError
from mtplx.kernels.tiling import Tiling
from mtplx.loading.find_head import head_candidates, unusable_head
from mtplx.loading.fingerprint import fingerprint
from mtplx.loading.memory import MemoryNeed, memory_limit_bytes
from mtplx.loading.progress import Progress
from mtplx.loading.resolve import NOWHERE, Places, resolve
from mtplx.loading.sharded import check_alike, join
from mtplx.loading.tuned import with_profile
from mtplx.models.drafter import HeadDrafter
from mtplx.models.llama import LlamaDims, LlamaTarget
from mtplx.models.llama_like import llama_dims_of
from mtplx.models.mlx_lm_target import MlxLmTarget
from mtplx.models.shortlist import Shortlist, frequent_ids, make_shortlist, widen
from mtplx.pace import Paces
from mtplx.speculation import Target
from mtplx.state import DecodeState

if TYPE_CHECKING:
    from mtplx.loading.gguf_model import GgufModel
    from mtplx.loading.head_file import HeadFile
    from mtplx.loading.native_folder import FolderModel, NativeHeadFile
    from mtplx.loading.tokenizer import Tokenizer

SMALLEST_CONTEXT = 256  # a conversation with less is none


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """What `load` gives. Shared by any number of decode states.

    head: None where there is none for this trunk; `no_head_reason` then says why in one line.
    context_note: why the target's context is shorter than the model's own, and what else of the
        checkpoint's wishes is not done, in one line; else None.
    depth_costs: what a profile of this machine says of it; `profile_note` says in one line which
        that is, or why one that is there is not used. paces: what this process learnt since.
    tiling: which tiles the kernels take.
    """

    name: str
    path: Path
    target: Target
    tokenizer: "Tokenizer"
    head: "HeadFile | NativeHeadFile | None"
    no_head_reason: str | None
    shortlist: Shortlist | None
    load_s: float
    context_note: str | None = None
    depth_costs: Tuned | None = None
    profile_note: str | None = None
    paces: Paces = field(default_factory=Paces, compare=False)
    tiling: Tiling = field(default_factory=Tiling, compare=False)

    @property
    def can_draft(self) -> bool:
        return self.head is not None

    def new_state(self, prompt_ids: list[int] | None = None) -> DecodeState:
        """Empty caches, and a drafter that may also draft the tokens of `prompt_ids`."""
        if self.head is None:
            return DecodeState(self.target)
        shortlist = self.shortlist
        if shortlist is not None:
            assert isinstance(self.target, LlamaTarget | MlxLmTarget)
            shortlist = widen(shortlist, self.target.lm_head, prompt_ids or [])
        return DecodeState(self.target, HeadDrafter(self.head.on(self.target), shortlist))


def load(
    model: str | Path = "smollm2",
    *,
    head: str | Path | None = None,
    places: Places = NOWHERE,
    memory_bytes: int | None = None,
    progress: Progress | None = None,
    distributed: bool = False,
) -> LoadedModel:
    """Load a GGUF file, a folder of safetensors, a Hugging Face id or an alias.

    head: an MTP head's file; by default one is looked for beside the model, among those trained
        here, and in this package. places: where else models are, and what they are called.
    memory_bytes: what the model and its context may take; by default what this machine allows.
    progress(done_bytes, total_bytes, what) follows a download.
    distributed: split a folder over the machines that mlx.launch started this process on. Only
        rank 0 returns from here; the others serve it until it ends, and then exit.
    Raises ModelNotFoundError, DownloadError, CheckpointError and its kinds, MemoryLimitError and
    FileAccessError.
    """
    started_s = time.perf_counter()
    group = join() if distributed else None
    path = resolve(str(model), places=places, progress=progress)
    if group is not None:
        check_alike(group, path)
    given = Path(head) if head is not None else None
    limit = memory_limit_bytes() if memory_bytes is None else memory_bytes
    tiling = Tiling()
    parts: GgufModel | FolderModel
    if path.is_file():
        parts, tokenizer, context_note = _gguf(path, limit, given, tiling)
    else:
        parts, tokenizer, context_note = _folder(path, limit, group, tiling)
    target, reason = parts.target, parts.no_head_reason
    found: HeadFile | NativeHeadFile | None = parts.head
    dims = None if group is not None else llama_dims_of(target)
    if dims is not None and found is None:
        found, reason = _head(path, dims, given)
    elif given is not None and path.is_dir():
        which = "a llama-type trunk" if group is None else "a model on one machine"
        raise HeadError(f"{head}: a head in a file of its own is for {which}, not for {path}.")
    loaded = LoadedModel(
        name=str(model),
        path=path,
        target=target,
        tokenizer=tokenizer,
        head=found,
        no_head_reason=reason,
        shortlist=_shortlist(target, found, tokenizer),
        load_s=0.0,
        context_note=context_note,
        tiling=tiling,
    )
    if group is None:  # profiles are of one machine
        loaded = with_profile(loaded)
    return replace(loaded, load_s=time.perf_counter() - started_s)


def _shortlist(
    target: LlamaTarget | MlxLmTarget,
    head: "HeadFile | NativeHeadFile | None",
    tokenizer: "Tokenizer",
) -> Shortlist | None:
    """The vocabulary that the head drafts from: what it was trained with, or what is frequent."""
    if head is None or not head.shares_output:
        return None
    ids = head.shortlist
    if ids is None:
        ids = frequent_ids(target.vocab_size, tokenizer.hidden_ids)
    return None if ids is None else make_shortlist(target.lm_head, ids)


def _gguf(
    path: Path, limit: int, given: Path | None, tiling: Tiling
) -> "tuple[GgufModel, Tokenizer, str | None]":
    from mtplx.loading.describe import gguf_memory
    from mtplx.loading.gguf_file import open_gguf
    from mtplx.loading.gguf_model import gguf_context_length, gguf_model
    from mtplx.loading.gguf_state import gguf_kv_dtype
    from mtplx.loading.tensor_list import gguf_entries
    from mtplx.loading.tokenizer_gguf import tokenizer_from_gguf

    file = open_gguf(path)
    # MLX multiplies packed weights well on a GPU; on a CPU its packed kernels are many times
    # slower than a BLAS over the expanded weights.
    packed = mx.metal.is_available()
    need = gguf_memory(file.metadata, gguf_entries(file), None, packed=packed)
    context, note = _fitting_context(path, need, gguf_context_length(file), limit)
    own = given is not None and given.suffix == ".gguf"
    head_file = open_gguf(given) if given is not None and own else None
    model = gguf_model(
        file,
        context,
        packed=packed,
        kv_dtype=gguf_kv_dtype(packed=packed),
        head_file=head_file,
        tiling=tiling,
    )
    return model, tokenizer_from_gguf(file.metadata), note


def _folder(
    path: Path, limit: int, group: mx.distributed.Group | None, tiling: Tiling
) -> "tuple[FolderModel, Tokenizer, str | None]":
    from mtplx.loading.describe_folder import folder_memory
    from mtplx.loading.expanded_tensors import ignored_directives
    from mtplx.loading.native_folder import folder_model, usual_manner
    from mtplx.loading.tokenizer_folder import tokenizer_from_folder

    packed = mx.metal.is_available()
    is_split = group is not None
    need = folder_memory(path, packed=packed, split=is_split)
    if group is not None:
        need = need.split(group.size())
    _fitting_context(path, need, 1, limit)  # before anything of any size is read
    model = folder_model(path, group, usual_manner(packed=packed, split=is_split, tiling=tiling))
    context, note = _fitting_context(path, need, model.target.context_length, limit)
    model = replace(model, target=replace(model.target, context_length=context))
    notes = [*ignored_directives(path), model.note, note]
    told = " ".join(line for line in notes if line) or None
    return model, tokenizer_from_folder(path), told


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


def _head(path: Path, dims: LlamaDims, given: Path | None) -> "tuple[HeadFile | None, str | None]":
    """A head for the trunk, or why there is none. One that was asked for has to fit."""
    trunk = fingerprint(path)
    if given is not None:
        return _fitting_head(given, path, dims, trunk), None
    problems = []
    for candidate in head_candidates(path, trunk):
        try:
            return _fitting_head(candidate, path, dims, trunk), None
        except (HeadError, FileAccessError) as error:
            problems.append(str(error))
    if problems:
        return None, unusable_head(problems[0])
    return None, (
        "no MTP head was found for this model, so it decodes plainly. "
        f"`mtplx train-head {path}` makes one."
    )


def _fitting_head(file: Path, path: Path, dims: LlamaDims, trunk: str) -> "HeadFile":
    from mtplx.loading.head_file import read_head

    head = read_head(file, dims)
    if head.trunk != trunk:
        raise HeadError(
            f"{file} was trained for another model (trunk {head.trunk or 'not stated'}, this "
            f"one is {trunk}). Remove it, or train one with `mtplx train-head {path}`."
        )
    mx.eval(head.weights.arrays())
    return head

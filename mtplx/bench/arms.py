"""What is compared: plain decoding, drafting at a depth, and mlx-lm's own loop.

Each arm answers the same prompt on its public path, text included. Decode time starts when the
prompt but for its last token is in the caches and ends when the last token has been read on the
host, which is after all that it depends on was computed.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import mlx.core as mx

from mtplx.draft_options import DraftOptions
from mtplx.errors import UsageError
from mtplx.generate import MAX_DEPTH, encode_prompt, generate
from mtplx.loading.load import LoadedModel
from mtplx.params import SamplingParams
from mtplx.prompts import Prompt
from mtplx.request import AUTO, depth_policy
from mtplx.state import DecodeState

OFF, MTP, MLX_LM = "off", "mtp", "mlx-lm"


@dataclass(frozen=True, slots=True)
class Case:
    """A prompt with its token ids and seed, the same for every arm."""

    kind: str
    text: str
    token_ids: tuple[int, ...]
    seed: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One reply. num_rounds, drafted and accepted (per draft position): 0 and empty for mlx-lm."""

    token_ids: tuple[int, ...]
    prefill_s: float
    decode_s: float
    num_rounds: int = 0
    drafted: tuple[int, ...] = ()
    accepted: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of decoding.

    name: "off", "mtp", "auto" or "mlx-lm".
    depth: tokens drafted per round; None where that changes.
    """

    name: str
    depth: int | None
    answer: Callable[[Case, SamplingParams], Sample]

    @property
    def label(self) -> str:
        """Name and depth, as tables show it."""
        return f"{self.name} {self.depth}" if self.name == MTP else self.name


def parse_depths(text: str) -> tuple[int | str, ...]:
    """Draft depths from "off,1,2,auto": ascending, with 0 first, since all is compared with it.

    Raises UsageError for what is neither "off" or "auto" nor a whole number in range.
    """
    depths, adds_auto = {0}, False
    for word in text.split(","):
        name = word.strip().lower()
        if name == AUTO:
            adds_auto = True
            continue
        depth = 0 if name == OFF else int(name) if name.isascii() and name.isdigit() else -1
        if not 0 <= depth <= MAX_DEPTH:
            raise UsageError(
                f"{word.strip()!r} is no depth. Give {OFF!r}, {AUTO!r} and numbers from 1 to "
                f"{MAX_DEPTH}, separated by commas: off,1,2,auto."
            )
        depths.add(depth)
    return (*sorted(depths), AUTO) if adds_auto else tuple(sorted(depths))


def make_cases(
    model: LoadedModel, prompts: tuple[Prompt, ...], first_seed: int
) -> tuple[Case, ...]:
    """The prompts as this model reads them, each with a seed of its own."""
    return tuple(
        Case(p.kind, p.text, tuple(encode_prompt(model.tokenizer, p.text)), first_seed + i)
        for i, p in enumerate(prompts)
    )


def make_arms(
    model: LoadedModel,
    depths: tuple[int | str, ...],
    *,
    mlx_lm: bool,
    state_of: Callable[[Case], DecodeState] | None = None,
) -> tuple[Arm, ...]:
    """An arm per depth, 0 being plain decoding, and mlx-lm's over the same weights if wanted.

    state_of: the state that a reply begins on, in place of a new one.
    Raises UsageError for drafting without an MTP head.
    """
    if any(depth != 0 for depth in depths) and not model.can_draft:
        raise UsageError(
            f"{model.name} cannot draft: {model.no_head_reason} Use --depths off to measure "
            "plain decoding."
        )

    def arm(depth: int | str) -> Arm:
        def answer(case: Case, params: SamplingParams) -> Sample:
            state = state_of(case) if state_of else model.new_state(list(case.token_ids))
            return _answer(model, depth, case, params, state)

        if isinstance(depth, str):
            return Arm(depth, None, answer)
        return Arm(MTP if depth else OFF, depth, answer)

    arms = tuple(arm(depth) for depth in depths)
    return (*arms, _mlx_lm_arm(model)) if mlx_lm else arms


def _answer(
    model: LoadedModel, depth: int | str, case: Case, params: SamplingParams, state: DecodeState
) -> Sample:
    # Chosen as for a request without a seed, which is what people measure; the draws have one.
    policy = depth_policy(model, depth, DraftOptions(), replace(params, seed=None), state)
    seeded = replace(params, seed=case.seed)
    result = generate(model, case.text, seeded, depth=policy, state=state)
    mx.synchronize()  # a pass that was queued ahead and thrown away must not slow the next arm
    stats = result.stats
    return Sample(
        token_ids=result.token_ids,
        prefill_s=stats.prefill_s,
        decode_s=stats.decode_s,
        num_rounds=stats.num_rounds,
        drafted=tuple(stats.drafted),
        accepted=tuple(stats.accepted),
    )


def _mlx_lm_arm(model: LoadedModel) -> Arm:
    from mlx_lm.generate import generation_stream, stream_generate
    from mlx_lm.sample_utils import make_sampler

    from mtplx.loading.mlx_lm_tokenizer import mlx_lm_tokenizer
    from mtplx.models.mlx_lm_twin import mlx_lm_twin

    twin, tokenizer = mlx_lm_twin(model.target), mlx_lm_tokenizer(model.tokenizer)

    def answer(case: Case, params: SamplingParams) -> Sample:
        mx.random.seed(case.seed)
        started_s = prefilled_s = time.perf_counter()

        def note(num_done: int, num_tokens: int) -> None:
            nonlocal prefilled_s
            if num_done < num_tokens:  # it reports once more when the first token is there
                prefilled_s = time.perf_counter()

        responses = stream_generate(
            twin,
            tokenizer,
            mx.array(case.token_ids),
            max_tokens=params.max_tokens,
            sampler=make_sampler(params.temperature),
            prompt_progress_callback=note,
        )
        token_ids = tuple(response.token for response in responses)
        ended_s = time.perf_counter()
        mx.synchronize(generation_stream)
        return Sample(token_ids, prefilled_s - started_s, ended_s - prefilled_s)

    return Arm(MLX_LM, 0, answer)

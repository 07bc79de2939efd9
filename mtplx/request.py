"""What a request asks for, checked: fields, depth and prompt."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from mtplx.auto_depth import AutoDepth
from mtplx.blas import serving
from mtplx.costs import CostCurve, Priors
from mtplx.depth import MAX_DEPTH as MAX_DEPTH
from mtplx.depth import DepthPolicy, FixedDepth, fixed_depth
from mtplx.draft_options import DraftOptions
from mtplx.errors import SamplingError, UsageError
from mtplx.loading.experts import experts_of
from mtplx.loading.load import LoadedModel
from mtplx.loading.tokenizer import Tokenizer
from mtplx.pace import Pace
from mtplx.params import SamplingParams
from mtplx.shipped_costs import SHIPPED_PRIORS, Experts, machine_kind, shipped_curve
from mtplx.state import DecodeState
from mtplx.text.breakers import breaker_ids
from mtplx.text.prompt import encode_chat
from mtplx.text.template import Message

AUTO = "auto"  # a depth: whichever is expected to be fastest


@dataclass(frozen=True, slots=True)
class EncodedPrompt:
    """A prompt as token ids. show: special tokens that are text in the reply, by name."""

    token_ids: Sequence[int]
    show: frozenset[int] = frozenset()


def encode_prompt(
    tokenizer: Tokenizer, prompt: str | Sequence[Message], *, raw: bool = False
) -> list[int]:
    """The token ids that `stream` continues. Raises UsageError where there is nothing."""
    if not prompt:
        raise UsageError("The prompt is empty. Say something for the model to answer.")
    if not isinstance(prompt, str):
        if raw:
            raise UsageError("A conversation needs the model's chat template; raw leaves it out.")
        return encode_chat(tokenizer, prompt)
    if raw or tokenizer.chat_template is None:
        return tokenizer.encode_prompt(prompt)
    return encode_chat(tokenizer, [Message("user", prompt)])


def checked_params(params: SamplingParams | None, given: dict[str, object]) -> SamplingParams:
    """The fields `given` on top of `params`. Raises SamplingError for a wrong value or name."""
    known = [field.name for field in fields(SamplingParams)]
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(known)}."
            raise SamplingError(f"There is no sampling field {name!r}. {hint}")
    return replace(params or SamplingParams(), **given)  # type: ignore[arg-type]  # checked there


def with_breakers(params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
    """With the ids of what no repeated passage runs over, where anything looks for repetitions."""
    if not params.avoids_repetition:
        return params
    ids = breaker_ids(tokenizer, params.dry_breakers)
    return replace(params, dry_breaker_ids=(*params.dry_breaker_ids, *ids))


def checked_depth(
    model: LoadedModel, depth: int | str | None, draft: DraftOptions, state: DecodeState | None
) -> int | str:
    """Tokens to draft in a round, or AUTO, also for None; 0 for AUTO with nothing to draft with.

    Raises UsageError for a depth that cannot be had.
    """
    has_head = model.can_draft and (state is None or state.drafter is not None)
    can_draft = has_head or not draft.uses_head
    if depth is None or depth == AUTO:
        return AUTO if can_draft else 0
    if isinstance(depth, bool) or not isinstance(depth, int) or not 0 <= depth <= MAX_DEPTH:
        raise UsageError(
            f"depth is {depth!r}, but must be {AUTO!r} or a whole number from 0 (plain decoding) "
            f"to {MAX_DEPTH}."
        )
    if depth > 0 and not can_draft:
        reason = model.no_head_reason or "this state has no drafter."
        raise UsageError(
            f"Cannot draft {depth} tokens per round: {reason} "
            "The draft mode 'lookup' needs no head."
        )
    return depth


def as_tuned(draft: DraftOptions, model: LoadedModel) -> DraftOptions:
    """The options with what the model's profile found best, where they leave it open."""
    if model.depth_costs is None or draft.window is not None:
        return draft
    return replace(draft, window=model.depth_costs.window)


def depth_policy(
    model: LoadedModel,
    depth: int | str | DepthPolicy | None,
    draft: DraftOptions,
    params: SamplingParams,
    state: DecodeState,
) -> DepthPolicy:
    """How deep to draft a request on this state; what AUTO learnt there before, it goes on with.

    With a seed of the request's own AUTO goes by nothing but the text and the stored curve, so that
    the seed gives one text; where any depth gives the same text, it need not.
    Raises UsageError for a depth that cannot be had.
    """
    if isinstance(depth, DepthPolicy):
        return depth
    checked = checked_depth(model, depth, draft, state)
    if isinstance(checked, int):
        return fixed_depth(checked)
    curve, priors = _expected(model)
    if params.seed is not None and params.draws_randomly and params.law != "coupled":
        return AutoDepth(Pace(curve), priors, uses_clock=False)
    pace = model.paces.of(curve, is_tuned=model.depth_costs is not None)
    if not isinstance(state.policy, AutoDepth) or state.policy.pace is not pace:
        state.policy = AutoDepth(pace, priors)
    return state.policy


def depth_name(policy: DepthPolicy) -> int | str:
    """A policy as `checked_depth` has it."""
    return policy.most if isinstance(policy, FixedDepth) else AUTO


def _expected(model: LoadedModel) -> tuple[CostCurve, Priors]:
    """What rounds cost and how often drafts are accepted, before this text has told."""
    if model.depth_costs is not None:
        unpredictable = {"unpredictable": SHIPPED_PRIORS["unpredictable"]}
        return model.depth_costs.curve, {**unpredictable, **model.depth_costs.priors}
    found = experts_of(model.path)
    return shipped_curve(_machine(), None if found is None else Experts(*found)), SHIPPED_PRIORS


def _machine() -> str:
    import mlx.core as mx

    if mx.default_device() == mx.cpu:
        return machine_kind("cpu", serving().name, "")
    return machine_kind("gpu", "", str(mx.device_info().get("architecture", "")))

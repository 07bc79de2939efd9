"""What `mtplx inspect --calibrate` does and tells."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from mtplx.errors import HeadError

if TYPE_CHECKING:
    from mtplx.loading.load import LoadedModel
    from mtplx.models.calibrate import Choice, Trial

NUM_TEXTS = 4
TOKENS_EACH = 50
BLIND = 0.05  # agreement that a head reaches which foresees nothing


def calibrated(model: "LoadedModel", text: str | None) -> "list[Trial]":
    """The trials of a model's own head. text: None is what the model writes itself.

    Raises HeadError for a model without such a head and UsageError for a text too short.
    """
    from mtplx.loading.native_folder import NativeHeadFile
    from mtplx.models.calibrate import calibrate
    from mtplx.models.mlx_lm_target import MlxLmTarget

    if not isinstance(model.head, NativeHeadFile) or not isinstance(model.target, MlxLmTarget):
        why = model.no_head_reason or "its head was trained here, for this one way of use."
        raise HeadError(f"There is nothing to calibrate in {model.path}: {why}")
    texts = _written(model) if text is None else [model.tokenizer.encode(text, parse_special=False)]
    return calibrate(model.head.head, texts)


def _written(model: "LoadedModel") -> list[list[int]]:
    """What the model answers to a few prompts, one of each class, prompts included."""
    from mtplx.generate import generate
    from mtplx.prompts import shipped_prompts

    texts = []
    for seed, prompt in enumerate(shipped_prompts()[:NUM_TEXTS]):
        state = model.new_state()
        generate(
            model,
            prompt.text,
            state=state,
            depth=0,
            max_tokens=TOKENS_EACH,
            temperature=0.7,
            seed=seed,
        )
        texts.append(list(state.token_ids))
    return texts


def as_text(trials: "Sequence[Trial]") -> str:
    """A line for each choice, then what follows from them."""
    num_places = len(trials[0].lengths)
    lines = [
        "",
        f"MTP head, replayed at {num_places:,} places: how often it prefers the trunk's own token",
        f"  {'fed':<8}{'hands on':<10}{'1st':>7}{'2nd':>7}{'3rd':>7}{'length':>9}",
    ]
    swapped = trials[0].choice.concat
    for trial in trials:
        shares = "".join(f"{share:>7.0%}" for share in trial.agreement)
        note = "  (used)" if trial is trials[0] else ""
        if trial.choice.concat != swapped:
            note = "  (halves of its input swapped)"
        fed, recycled = _side(trial.choice.hidden_stage), _side(trial.choice.recycle_stage)
        lines.append(f"  {fed:<8}{recycled:<10}{shares}{trial.mean_length:>9.2f}{note}")
    return "\n".join([*lines, f"  {verdict(trials)}"]) + "\n"


def verdict(trials: "Sequence[Trial]") -> str:
    """What the trials say of the family's data, in one line."""
    from mtplx.models.calibrate import surely_better

    best = surely_better(trials)
    if best is not None:
        return (
            f"Warning: this head drafts better when it is {_told(best.choice)}: "
            f"{best.mean_length:.2f} tokens accepted and not {trials[0].mean_length:.2f}. What is "
            "known of its family is wrong for this checkpoint. Please report it."
        )
    if trials[0].agreement[0] < BLIND:
        return (
            "Warning: this head foresees next to nothing under any choice. Its tensors, or how its "
            "norms are stored, may not be what they should be."
        )
    return "What is known of its family is as good as any other choice."


def as_json(trials: "Sequence[Trial]") -> dict[str, object]:
    """The trials, the family's own choice first, and what follows from them."""
    listed = [
        {
            **asdict(trial.choice),
            "agreement": list(trial.agreement),
            "mean_length": trial.mean_length,
        }
        for trial in trials
    ]
    return {"num_places": len(trials[0].lengths), "trials": listed, "verdict": verdict(trials)}


def _side(stage: str) -> str:
    """before | after, of the norm."""
    return stage.partition("_")[0]


def _told(choice: "Choice") -> str:
    fed, recycled = _side(choice.hidden_stage), _side(choice.recycle_stage)
    order = choice.concat.replace("_", " ")
    return (
        f"fed from {fed} the trunk's norm, hands on from {recycled} its own, and has the {order} "
        "in its input"
    )

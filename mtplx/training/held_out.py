"""Replies to the shipped prompts, none of which training uses, to measure a head on."""

from collections.abc import Callable
from pathlib import Path

from mtplx.loading.load import LoadedModel
from mtplx.models.llama import LlamaTarget
from mtplx.prompts import shipped_prompts
from mtplx.training.acceptance import HeldOut
from mtplx.training.framing import chat_framing
from mtplx.training.own_text import write_replies
from mtplx.training.passages_file import read_passages, write_passages

CLASSES = ("chat", "code", "prose")
TEMPERATURES = (0.0, 0.7)
REPLY_TOKENS = 96
SEED = 7


def held_out_replies(
    folder: Path, model: LoadedModel, target: LlamaTarget, tell: Callable[[str, int, int], None]
) -> HeldOut:
    """The trunk's replies by class and temperature, from `folder` or written now."""
    framing = chat_framing(model.tokenizer)
    keys = [(kind, temperature) for kind in CLASSES for temperature in TEMPERATURES]
    replies: HeldOut = {}
    for i, (kind, temperature) in enumerate(keys):
        tell("writing held-out replies", i, len(keys))
        asked = [p for p in shipped_prompts() if p.kind == kind]
        encoded = [(kind, model.tokenizer.encode(p.text, parse_special=False)) for p in asked]
        path = folder / f"held-out-{kind}-{temperature:g}.npz"
        if not path.exists():
            written = write_replies(
                target,
                framing,
                encoded,
                temperature=temperature,
                num_tokens=REPLY_TOKENS,
                seed=SEED,
            )
            write_passages(path, [passage for passage, _ in written])
        around = len(framing.before_user) + len(framing.before_reply)
        firsts = [around + len(token_ids) - 1 for _, token_ids in encoded]
        replies[kind, temperature] = list(zip(read_passages([path]), firsts, strict=True))
    return replies

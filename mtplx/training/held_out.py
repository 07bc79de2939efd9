"""Replies to the shipped prompts, none of which training uses, to measure a head on."""

from collections.abc import Callable

from mtplx.loading.load import LoadedModel
from mtplx.models.llama import LlamaTarget
from mtplx.prompts import shipped_prompts
from mtplx.training.acceptance import HeldOut, judged
from mtplx.training.framing import chat_framing
from mtplx.training.own_text import write_replies
from mtplx.training.passages_file import read_passages, write_passages
from mtplx.training.plan import Plan
from mtplx.training.run_folder import HELD_OUT

CLASSES = ("chat", "code", "prose")
TEMPERATURES = (0.0, 0.7)
SEED = 7


def held_out_replies(
    plan: Plan, model: LoadedModel, target: LlamaTarget, tell: Callable[[int, int], None]
) -> HeldOut:
    """The trunk's replies by class and temperature, from the plan's folder or written now.

    Prompts that leave no room for a reply in the model's context are left out, and so is a class
    of none but such prompts. tell(done, total) follows it.
    """
    framing = chat_framing(model.tokenizer)
    around = len(framing.before_user) + len(framing.before_reply)
    room = target.context_length - around - plan.reply_tokens
    keys = [(kind, temperature) for kind in CLASSES for temperature in TEMPERATURES]
    replies: HeldOut = {}
    for i, (kind, temperature) in enumerate(keys):
        tell(i, len(keys))
        asked = [
            (kind, model.tokenizer.encode(prompt.text, parse_special=False))
            for prompt in shipped_prompts()
            if prompt.kind == kind
        ][: plan.prompts_per_class]
        fitting = [(kind, token_ids) for kind, token_ids in asked if len(token_ids) <= room]
        if not fitting:
            continue
        path = plan.folder / HELD_OUT.replace("*", f"{kind}-{temperature:g}")
        if not path.exists():
            written = write_replies(
                target,
                framing,
                fitting,
                temperature=temperature,
                num_tokens=plan.reply_tokens,
                seed=SEED,
            )
            write_passages(path, [passage for passage, _ in written])
        firsts = [around + len(token_ids) - 1 for _, token_ids in fitting]
        pairs = zip(read_passages([path]), firsts, strict=True)
        replies[kind, temperature] = [judged(target, *pair, temperature) for pair in pairs]
    tell(len(keys), len(keys))
    return replies

"""Record what the head drafts at every place of the default model's replies.

    python -m benchmarks.record_replies --prompts 4

Greedy replies of 96 tokens at most, of the same kinds as `benchmarks.auto_depth` writes. At each
place of them the head drafts ten tokens: kept are how likely it held each, and how many the reply
has. `python -m tests.recorded_replies` writes them again under any policy and any machine's times.
"""

import argparse
import io
import sys
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from mtplx.errors import MtplxError, UsageError
from mtplx.files import write_atomically
from tests.recorded_replies import MAX_TOKENS, PATH, Reply

if TYPE_CHECKING:
    import mlx.core as mx

    from mtplx.bench.arms import Case
    from mtplx.loading.load import LoadedModel

NUM_DRAFTED = 10
LONG_TOKENS = 640


def record(model: "LoadedModel", case: "Case") -> Reply:
    """The reply to one prompt, and a draft from every place of it."""
    from mtplx.generate import generate

    result = generate(model, case.text, depth=0, temperature=0.0, max_tokens=MAX_TOKENS)
    prompt, text = list(case.token_ids), list(result.token_ids)
    state = model.new_state(prompt)
    held, accepted = [], []
    for place in range(len(text)):
        before = [*prompt, *text[:place]]
        state.begin(before, drafting=True)
        rows = state.draft_input(before[-1])
        assert rows is not None
        assert state.drafter is not None
        likely: list[float] = []
        draft = state.drafter.propose(rows, NUM_DRAFTED, partial(_best, likely))
        follows = [*text[place:], *[-1] * NUM_DRAFTED]
        drafted = np.array(draft.token_ids)
        right = [int(a) == b for a, b in zip(drafted, follows, strict=False)]
        held.append(likely)
        accepted.append([*right, False].index(False))
    return Reply(case.kind, prompt, text, held, accepted)


def _best(likely: list[float], logits: "mx.array", step: int) -> "tuple[mx.array, None]":
    """The head's most probable token; how probable goes into the list."""
    import mlx.core as mx

    probs = mx.softmax(logits.astype(mx.float32), axis=-1)
    likely.append(float(mx.max(probs).item()))  # type: ignore[arg-type]
    return mx.argmax(logits, axis=-1).astype(mx.int32), None


def save(replies: list[Reply]) -> None:
    """All of them, in one file of flat columns."""
    content = io.BytesIO()
    np.savez_compressed(
        content,
        kinds=np.array([reply.kind for reply in replies]),
        lengths=np.array([[len(reply.prompt), len(reply.text)] for reply in replies]),
        prompt=np.concatenate([np.array(reply.prompt, np.uint32) for reply in replies]),
        text=np.concatenate([np.array(reply.text, np.uint32) for reply in replies]),
        held=np.concatenate(
            [np.array(np.round(np.array(reply.held) * 100), np.uint8) for reply in replies]
        ),
        accepted=np.concatenate([np.array(reply.accepted, np.uint8) for reply in replies]),
    )
    write_atomically(PATH, content.getvalue())


def run(model_name: str, num_prompts: int) -> None:
    """Record them all."""
    if num_prompts < 1:
        raise UsageError("--prompts has to be 1 or more.")
    from mtplx.blas import preload

    preload("auto")  # has to come before MLX
    from benchmarks.auto_depth import make_cases
    from mtplx.loading.load import load

    model = load(model_name)
    replies = []
    for case in make_cases(model, num_prompts, LONG_TOKENS):
        replies.append(record(model, case))
        print(f"{case.kind}: {len(replies[-1].text)} tokens", file=sys.stderr, flush=True)
    save(replies)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--prompts", type=int, default=4, help="of each kind")
    given = parser.parse_args()
    try:
        run(given.model, given.prompts)
    except MtplxError as error:
        print(f"Error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

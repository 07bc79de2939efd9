"""`mtplx demo`: what drafting brings, seen on two prompts."""

from typing import TYPE_CHECKING, Annotated

import typer

from mtplx.cli.model import load_model
from mtplx.cli.options import DEFAULT_MODEL, Depth, Head, Model
from mtplx.cli.output import write

if TYPE_CHECKING:
    from mtplx.generate import Result
    from mtplx.loading.load import LoadedModel

PROMPTS = {
    "Chat": "Why is the sky blue?",
    "Code": "Write a Python function that reverses a string.",
}
WARM_UP_TOKENS = 8


def demo(
    model: Model = DEFAULT_MODEL,
    head: Head = None,
    max_tokens: Annotated[
        int, typer.Option(metavar="N", help="End each answer after this many tokens.")
    ] = 96,
    depth: Depth = None,
) -> None:
    """Answer two prompts with drafting off and on, with the figures.

    At temperature 0, so that both ways give the same text. The figures are of one run each.
    """
    loaded = load_model(model, head)
    write(f"{loaded.name}, loaded in {loaded.load_s:.1f} s. Temperature 0.\n")
    for given in (0, depth):  # the first pass of each kind is slower: memory, compiled steps
        _answer(loaded, PROMPTS["Chat"], WARM_UP_TOKENS, given)
    for kind, question in PROMPTS.items():
        write(f"\n{kind}: {question}\n\n")
        off = _answer(loaded, question, max_tokens, 0, shown=True)
        on = _answer(loaded, question, max_tokens, depth)
        write(f"\n\n  MTP off  {off.tokens_per_s:5.1f} tokens/s\n")
        write(f"  MTP on   {_compared(on, off)}\n" if on.depth else "")
    if loaded.no_head_reason:
        write(f"\nThere is no MTP on: {loaded.no_head_reason}\n")
    else:
        write("\nEach figure is of one run. `mtplx bench` repeats and gives the spread.\n")


def _answer(
    model: "LoadedModel",
    question: str,
    max_tokens: int,
    depth: int | None,
    *,
    shown: bool = False,
) -> "Result":
    from mtplx.generate import stream

    for event in stream(model, question, depth=depth, temperature=0, max_tokens=max_tokens):
        if shown:
            write(event.text)
        if event.result is not None:
            return event.result
    raise AssertionError("a stream ends with a result")


def _compared(on: "Result", off: "Result") -> str:
    ratio = on.tokens_per_s / off.tokens_per_s
    same = "the same text" if on.token_ids == off.token_ids else "ANOTHER TEXT"
    return (
        f"{on.tokens_per_s:5.1f} tokens/s, {ratio:.2f} times as fast, {same}; "
        f"acceptance length {on.acceptance_length:.2f} at depth {on.depth}"
    )

"""A chat template taken apart into what stands around messages and replies."""

from mtplx.errors import TrainingError
from mtplx.loading.tokenizer import Tokenizer
from mtplx.text.prompt import encode_chat
from mtplx.text.template import Message
from mtplx.training.own_text import Framing

MARKS = ("Zebra", "Walrus", "Quokka")  # messages to be found again in the rendered conversation


def chat_framing(tokenizer: Tokenizer) -> Framing:
    """The framing of a tokenizer's chat template; where it has none, BOS at most.

    TrainingError where the template changes or moves messages so that they cannot be found again.
    """
    end_ids = tokenizer.stop_ids
    if tokenizer.chat_template is None:
        return Framing(tuple(tokenizer.with_bos([])), (), (), end_ids)
    marks = [tokenizer.encode(mark, parse_special=False) for mark in MARKS]
    first = encode_chat(tokenizer, [Message("user", MARKS[0])])
    roles = ("user", "assistant", "user")
    turns = [Message(role, mark) for role, mark in zip(roles, MARKS, strict=True)]
    whole = encode_chat(tokenizer, turns)
    ((start, end),) = _spans(first, marks[:1])
    (opening, _), (_, reply_end), (next_start, _) = _spans(whole, marks)
    if whole[:opening] != first[:start]:
        raise _unusable("what it begins with depends on the messages")
    return Framing(
        before_user=tuple(first[:start]),
        before_reply=tuple(first[end:]),
        after_reply=tuple(whole[reply_end:next_start]),
        end_ids=end_ids,
    )


def _spans(token_ids: list[int], parts: list[list[int]]) -> list[tuple[int, int]]:
    """Where each of the parts stands, one after the other."""
    spans: list[tuple[int, int]] = []
    for part in parts:
        at = spans[-1][1] if spans else 0
        starts = range(at, len(token_ids) - len(part) + 1)
        found = next((s for s in starts if token_ids[s : s + len(part)] == part), None)
        if found is None:
            raise _unusable("it changes or drops messages")
        spans.append((found, found + len(part)))
    return spans


def _unusable(why: str) -> TrainingError:
    return TrainingError(
        f"The model's chat template cannot frame training conversations: {why}. A head can only "
        "be trained for a model whose template puts messages as they are, in their order."
    )

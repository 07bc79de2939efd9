"""A chat template taken apart into what stands around messages and replies."""

from mtplx.errors import TrainingError
from mtplx.loading.tokenizer import Tokenizer
from mtplx.text.prompt import encode_chat
from mtplx.text.template import Message
from mtplx.training.own_text import Framing

MARKS = ("Zebra", "Walrus", "Quokka")  # messages to be found again in the rendered conversation


def chat_framing(tokenizer: Tokenizer) -> Framing:
    """The framing of a tokenizer's chat template; an empty one where it has none.

    TrainingError where the template changes messages so that they cannot be found again.
    """
    end_ids = tokenizer.stop_ids
    if tokenizer.chat_template is None:
        return Framing((), (), (), end_ids)
    first = encode_chat(tokenizer, [Message("user", MARKS[0])])
    roles = ("user", "assistant", "user")
    turns = [Message(role, mark) for role, mark in zip(roles, MARKS, strict=True)]
    whole = encode_chat(tokenizer, turns)
    spans = [_find(whole, tokenizer.encode(mark, parse_special=False)) for mark in MARKS]
    message = _find(first, tokenizer.encode(MARKS[0], parse_special=False))
    return Framing(
        before_user=tuple(first[: message[0]]),
        before_reply=tuple(first[message[1] :]),
        after_reply=tuple(whole[spans[1][1] : spans[2][0]]),
        end_ids=end_ids,
    )


def _find(token_ids: list[int], part: list[int]) -> tuple[int, int]:
    for start in range(len(token_ids) - len(part) + 1):
        if token_ids[start : start + len(part)] == part:
            return start, start + len(part)
    raise TrainingError(
        "The model's chat template changes messages, so training conversations cannot be framed."
    )

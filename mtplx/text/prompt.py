"""A conversation to the token ids of its prompt.

The special tokens of a prompt come from the chat template alone. What people, files and models
said may spell them out and must stay text, but templates are programs: they trim, split and test
contents, so contents cannot be kept out of the template and put in afterwards.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from mtplx.errors import CheckpointError
from mtplx.loading.tokenizer import Tokenizer
from mtplx.text.template import Message, render_chat

_FIRST_PRIVATE, _LAST_PRIVATE = 0xF0000, 0xFFFFD  # private-use characters of plane 15


def encode_chat(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = True,
    **switches: object,
) -> list[int]:
    """The prompt of a conversation: the template's special tokens, everything else as text.

    Starts with BOS once where the model or its template wants one. switches go to the template.
    Special tokens spelled in a message stay text, and the template does not find them there.

    Raises CheckpointError where the checkpoint has no template or a broken one, UsageError where
    the template refuses the messages.
    """
    template = tokenizer.chat_template
    if template is None:
        raise CheckpointError(
            "The model has no chat template, so it does not know turns of a conversation. "
            "Use a chat or instruct model, or generate from a plain prompt."
        )
    names = {"bos_token": tokenizer.bos_token, "eos_token": tokenizer.eos_token}
    known = {name: token for name, token in names.items() if token is not None}
    settings = {**known, **switches}
    specials = [token for token in tokenizer.special_tokens if token.strip()]
    said = [text for message in messages for text in (message.content, message.reasoning)]
    texts = [template, *said, *map(str, settings.values())]
    stand_ins = _stand_ins(specials, "".join(texts))

    def render(shielded: Sequence[Message]) -> str:
        return render_chat(
            template, shielded, add_generation_prompt=add_generation_prompt, **settings
        )

    rendered = _render_shielded(render, messages, _any_of(specials), stand_ins)
    back = str.maketrans({stand_in: character for character, stand_in in stand_ins.items()})
    pieces = tokenizer.split_special(rendered)
    plain = [piece if isinstance(piece, int) else piece.translate(back) for piece in pieces]
    return tokenizer.with_bos(tokenizer.encode_pieces(plain))


def _render_shielded(
    render: Callable[[Sequence[Message]], str],
    messages: Sequence[Message],
    spelled: re.Pattern[str],
    stand_ins: dict[str, str],
) -> str:
    """The rendered text, in which every special token is the template's own.

    A special token spelled in a message loses one character to a stand-in while the template
    runs, so that the template sees a text of the same length that trims and splits the same way.
    Should a template make a special token out of pieces of a message, all characters that one
    could start or end with are replaced instead. In that case, and for special tokens spelled in
    messages in every case, a template that searches contents does not find them.
    """
    rendered = render(_replace_spelled(messages, spelled, stand_ins))
    said = [message.content + message.reasoning for message in messages]
    if all(stand_ins.keys().isdisjoint(text) for text in said):
        return rendered
    strict = render(_replace_characters(messages, stand_ins))
    return rendered if spelled.findall(rendered) == spelled.findall(strict) else strict


def _any_of(specials: Sequence[str]) -> re.Pattern[str]:
    """Matches the special tokens, the longest where several begin."""
    longest_first = sorted(specials, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")


def _stand_ins(specials: Sequence[str], taken: str) -> dict[str, str]:
    """For each character that a special token starts or ends with, one that nothing here uses."""
    used = set(taken)
    free = (chr(code) for code in range(_FIRST_PRIVATE, _LAST_PRIVATE + 1) if chr(code) not in used)
    edges = {character for token in specials for character in (token.strip()[0], token.strip()[-1])}
    return dict(zip(sorted(edges), free, strict=False))


def _replace_spelled(
    messages: Sequence[Message], spelled: re.Pattern[str], stand_ins: dict[str, str]
) -> list[Message]:
    """Messages whose special tokens are broken by a stand-in for their first character."""

    def broken(match: re.Match[str]) -> str:
        start = len(match[0]) - len(match[0].lstrip())
        return match[0][:start] + stand_ins[match[0][start]] + match[0][start + 1 :]

    return _mapped(messages, lambda text: spelled.sub(broken, text))


def _replace_characters(messages: Sequence[Message], stand_ins: dict[str, str]) -> list[Message]:
    table = str.maketrans(stand_ins)
    return _mapped(messages, lambda text: text.translate(table))


def _mapped(messages: Sequence[Message], change: Callable[[str], str]) -> list[Message]:
    return [
        replace(message, content=change(message.content), reasoning=change(message.reasoning))
        for message in messages
    ]

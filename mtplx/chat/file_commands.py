"""Commands that read and write files of the user's."""

import json
import re
from collections.abc import Iterable
from pathlib import Path

from mtplx.chat.command import Desk, Outcome
from mtplx.chat.report import model_name
from mtplx.chat.session import Conversation
from mtplx.chat.settings import settings_to_plain
from mtplx.chat.typed_path import as_typed, existing
from mtplx.errors import FileAccessError, UsageError
from mtplx.files import access_error, accessing
from mtplx.text.template import Message

MAX_BYTES = 16 << 20  # more than any context holds
FORMATS = ("md", "json")


def read_file(desk: Desk, argument: str) -> Outcome:
    conversation = desk.conversation
    if not argument:
        num_attached = len(conversation.attached)
        return Outcome([f"{num_attached} files go with your next message. /read FILE adds one."])
    if argument == "off":
        conversation.attached = []
        return Outcome(["No file goes with your next message."])
    path = path_of(argument)
    text = _text(path)
    attached = _fenced(path.name, text)
    num_tokens = len(conversation.model.tokenizer.encode(attached, parse_special=False))
    if num_tokens >= conversation.context:
        raise UsageError(
            f"{path} has {num_tokens:,} tokens, and the context holds {conversation.context:,}. "
            "Give a part of it."
        )
    conversation.attached.append(attached)
    return Outcome([f"{path.name}, {num_tokens:,} tokens, goes with your next message."])


def read_image(desk: Desk, argument: str) -> Outcome:
    name = model_name(desk.conversation.model.name)
    raise UsageError(f"{name} has no image input, it reads text only. /read FILE takes text files.")


def export(desk: Desk, argument: str) -> Outcome:
    form, _, name = argument.partition(" ")
    if form not in FORMATS:
        raise UsageError(f"/export takes md or json, and a file if you like, not {argument!r}.")
    conversation = desk.conversation
    if not conversation.messages:
        raise UsageError("Nothing has been said yet, so there is nothing to write.")
    stem = conversation.file.name if conversation.file is not None else "conversation"
    path = path_of(name) if name.strip() else Path(f"{stem}.{form}")
    content = _as_json(conversation) if form == "json" else _as_markdown(conversation)
    try:
        with path.open("x", encoding="utf-8", errors="replace") as file:
            file.write(content)
    except FileExistsError as error:
        raise UsageError(
            f"{path} is there already. Name another file: /export {form} FILE"
        ) from error
    except OSError as error:
        raise access_error("write", path, error) from error
    return Outcome([f"Written to {path.absolute()}"])


def path_of(text: str) -> Path:
    """A path as people type it: with quotes around it, escaped spaces, or a tilde.

    Raises UsageError for what no path can be.
    """
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "'\"":
        text = text[1:-1]
    elif existing(text) is None:
        text = re.sub(r"\\(.)", r"\1", text)
    return as_typed(text)


def _text(path: Path) -> str:
    with accessing("read", path), path.open("rb") as file:
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise FileAccessError(f"{path} is over {MAX_BYTES >> 20} MB, more than any context holds.")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise FileAccessError(
            f"{path} is not UTF-8 text: byte 0x{content[error.start]:02x} at offset "
            f"{error.start}. Convert it first, for example with iconv."
        ) from error
    if "\0" in text:
        raise FileAccessError(f"{path} is not text: it holds zero bytes.")
    return text


def _fenced(name: str, text: str) -> str:
    longest = max((len(ticks) for ticks in re.findall(r"`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{name}:\n{fence}\n{text}{'' if text.endswith(chr(10)) else chr(10)}{fence}"


def _as_json(conversation: Conversation) -> str:
    transcript = conversation.transcript
    document = {
        "model": transcript.model,
        "seed": transcript.seed,
        "settings": settings_to_plain(transcript.settings),
        "num_left_out": transcript.first,
        "messages": [_plain(message) for message in transcript.messages],
    }
    return json.dumps(document, ensure_ascii=False, indent=2) + "\n"


def _plain(message: Message) -> dict[str, str]:
    reasoning = {"reasoning": message.reasoning} if message.reasoning else {}
    return {"role": message.role, **reasoning, "content": message.content}


def _as_markdown(conversation: Conversation) -> str:
    name = model_name(conversation.transcript.model)
    return "\n".join(_sections(conversation.transcript.messages, name))


def _sections(messages: Iterable[Message], name: str) -> Iterable[str]:
    for message in messages:
        yield f"## {'You' if message.role == 'user' else name}\n"
        if message.reasoning:
            yield "\n".join(f"> {line}".rstrip() for line in message.reasoning.split("\n")) + "\n"
        yield message.content + "\n"

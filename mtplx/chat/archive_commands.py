"""Commands about conversations as wholes: keep, find, go on with, another model."""

from contextlib import suppress
from dataclasses import replace
from datetime import datetime

from mtplx.chat.archive import read_conversation
from mtplx.chat.command import Desk, Next, Opening, Outcome
from mtplx.chat.report import model_name
from mtplx.chat.settings import Settings
from mtplx.errors import FileAccessError, UsageError

_NUM_LISTED = 20
_TITLE_LENGTH = 50


def clear(desk: Desk, argument: str) -> Outcome:
    return Outcome(["A new conversation."], conversation=desk.conversation.fresh())


def save(desk: Desk, argument: str) -> Outcome:
    conversation = desk.conversation
    if argument:
        if not conversation.messages:
            raise UsageError("Nothing has been said yet, so there is nothing to keep.")
        conversation.keep()
    if conversation.problem is not None:
        raise conversation.problem
    if conversation.file is None:
        return Outcome(["Not kept yet." if conversation.keeps else "Not kept. /save NAME does."])
    if argument:
        desk.archive.rename(conversation.file, argument)
    return Outcome([f"Kept as {conversation.file.name}: {conversation.file.path}"])


def load(desk: Desk, argument: str) -> Outcome:
    if not argument:
        raise UsageError("/load takes the name of a conversation. /list shows what there is.")
    path = desk.archive.find(argument)
    current = desk.current.file if desk.current is not None else None
    if current is not None and current.path == path:
        return Outcome([f"{current.name} is this conversation."])
    saved, file = desk.archive.open(argument)
    return Outcome(opening=Opening(saved.transcript.model, saved.transcript, file))


def list_saved(desk: Desk, argument: str) -> Outcome:
    names = desk.archive.names()
    if not names:
        return Outcome(["No conversation has been kept yet."])
    shown = names[:_NUM_LISTED]
    width = max(map(len, shown)) + 2
    rows = [f"{name:<{width}}{_summary(desk, name)}" for name in shown]
    if len(names) > len(shown):
        rows.append(f"{len(names) - len(shown):,} more in {desk.archive.folder}")
    return Outcome(rows, width)


def show_model(desk: Desk, argument: str) -> Outcome:
    conversation = desk.conversation
    if argument:
        kept = Opening(
            argument,
            conversation.transcript,
            conversation.file,
            _as_the_model_wants,
            tuple(conversation.attached),
        )
        return Outcome(opening=kept)
    model = conversation.model
    lines = [f"{model_name(model.name)}: {model.path}"]
    if model.no_head_reason is not None:
        lines.append(model.no_head_reason)
    return Outcome(lines)


def leave(desk: Desk, argument: str) -> Outcome:
    return Outcome(next=Next.LEAVE)


def saved_names(desk: Desk) -> list[str]:
    """For completion."""
    return desk.archive.names()


def _as_the_model_wants(saved: Settings, fresh: Settings) -> Settings:
    return replace(saved, params=fresh.params, depth=fresh.depth, drafts=fresh.drafts)


def _summary(desk: Desk, name: str) -> str:
    path = desk.archive.path(name)
    at = ""
    with suppress(OSError):
        at = datetime.fromtimestamp(path.stat().st_mtime).strftime("%d %b %H:%M")
    try:
        transcript = read_conversation(path).transcript
    except FileAccessError:
        return f"{at}  damaged: /load {name} tells more"
    title = transcript.title
    cut = title if len(title) <= _TITLE_LENGTH else f"{title[:_TITLE_LENGTH]}..."
    num_turns = sum(message.role == "user" for message in transcript.messages)
    return f"{at}  {num_turns} turns  {model_name(transcript.model)}  {cut}"

"""Commands that change how replies are made."""

import difflib
import json
from collections.abc import Mapping
from dataclasses import replace

from mtplx.chat.command import Desk, Outcome
from mtplx.chat.report import NO_SWITCH, drafting, usage
from mtplx.chat.session import Conversation
from mtplx.chat.settings import WHEN_FULL, holds_texts, sampling_default, sampling_fields
from mtplx.draft_options import DRAFT_MODES
from mtplx.errors import SamplingError, UsageError
from mtplx.params import LAW_NAMES

_SHORT = {"temp": "temperature"}
_NAME_WIDTH = 22


def set_sampling(desk: Desk, argument: str) -> Outcome:
    name, _, text = argument.partition(" ")
    params = desk.conversation.settings.params
    if not name:
        rows = [f"{n:<{_NAME_WIDTH}}{_shown(getattr(params, n))}" for n in sampling_fields()]
        return Outcome(rows, _NAME_WIDTH)
    name = _SHORT.get(name, name)
    if name not in sampling_fields():
        near = difflib.get_close_matches(name, sampling_fields(), n=1)
        hint = f"Did you mean {near[0]}?" if near else "/set alone lists what there is."
        raise SamplingError(f"There is no sampling field {name!r}. {hint}")
    if text.strip():
        changed = replace(params, **{name: _value(name, text.strip())})  # type: ignore[arg-type]
        _change(desk.conversation, params=changed)
        params = changed
    return Outcome([f"{name} {_shown(getattr(params, name))}"])


def set_law(desk: Desk, argument: str) -> Outcome:
    conversation = desk.conversation
    if argument:
        _change(conversation, params=replace(conversation.settings.params, law=argument))
    others = [name for name in LAW_NAMES if name != conversation.settings.params.law]
    more = f" (others: {', '.join(others)})" if others and not argument else ""
    return Outcome([f"Law {conversation.settings.params.law}.{more}"])


def set_depth(desk: Desk, argument: str) -> Outcome:
    conversation = desk.conversation
    if argument == "off":
        _change(conversation, drafts=False)
    elif argument in ("on", "auto"):
        _need_drafts(conversation)
        _change(conversation, drafts=True, depth=None)
    elif argument:
        if not argument.isdecimal():
            raise UsageError(f"/depth takes a number, auto or off, but there was {argument!r}.")
        _need_drafts(conversation)
        depth = int(argument)
        _change(conversation, drafts=depth > 0, depth=depth or conversation.settings.depth)
    return Outcome([f"{drafting(conversation)}."])


def set_mtp(desk: Desk, argument: str) -> Outcome:
    conversation = desk.conversation
    if argument == "on":
        _need_drafts(conversation)
    if argument in ("on", "off"):
        _change(conversation, drafts=argument == "on")
    elif argument in DRAFT_MODES:
        draft = replace(conversation.settings.draft, mode=argument)
        _change(conversation, drafts=True, draft=draft)
    elif argument:
        modes = ", ".join(DRAFT_MODES)
        raise UsageError(f"/mtp takes on, off or one of {modes}, but there was {argument!r}.")
    return Outcome([f"{drafting(conversation)}."])


def set_system(desk: Desk, argument: str) -> Outcome:
    conversation = desk.conversation
    if not argument:
        system = conversation.settings.system
        shown = (
            f"{system}\n(/system off removes it.)" if system else "Only the model's own, if any."
        )
        return Outcome(shown.split("\n"))
    system = None if argument == "off" else argument
    _change(conversation, system=system)
    return Outcome([f"System prompt {'set' if system else 'removed'}."])


def set_thinking(desk: Desk, argument: str) -> Outcome:
    conversation = desk.conversation
    if argument == "off" and conversation.thinking_switch is None:
        raise UsageError(f"{NO_SWITCH} /think hide keeps it from being shown.")
    if argument == "hide":
        _change(conversation, shows_thinking=False)
    elif argument in ("on", "off"):
        thinks = argument == "on" if conversation.thinking_switch else None
        _change(conversation, thinks=thinks, shows_thinking=True)
    elif argument:
        raise UsageError(f"/think takes on, off or hide, but there was {argument!r}.")
    return Outcome([_thinking(conversation)])


def set_context(desk: Desk, argument: str) -> Outcome:
    conversation = desk.conversation
    if argument in WHEN_FULL:
        _change(conversation, when_full=argument)
    elif argument == "max":
        _change(conversation, context=None)
    elif argument:
        if not argument.isdecimal():
            raise UsageError(
                f"/context takes stop, drop, a number of tokens or max, but there was {argument!r}."
            )
        _change(conversation, context=int(argument))
    drops = conversation.settings.when_full == "drop"
    when_full = "the oldest turns are left out" if drops else "messages that do not fit are refused"
    return Outcome([f"{conversation.context:,} tokens; when they are full, {when_full}."])


def show_usage(desk: Desk, argument: str) -> Outcome:
    return Outcome(usage(desk.conversation), 11)


def _thinking(conversation: Conversation) -> str:
    settings = conversation.settings
    shown = "shown" if settings.shows_thinking else "folded"
    if conversation.thinking_switch is None:
        return f"{NO_SWITCH} If it thinks, that is {shown}."
    if settings.thinks is None:
        return f"Thinking is left to the template; it is {shown}."
    return f"Thinking on; it is {shown}." if settings.thinks else "Thinking off."


def _need_drafts(conversation: Conversation) -> None:
    if not conversation.can_draft:
        raise UsageError(
            f"There is nothing to draft with: {conversation.model.no_head_reason} "
            "/mtp lookup drafts from repetitions and needs no head."
        )


def _change(conversation: Conversation, **changed: object) -> None:
    conversation.settings = replace(conversation.settings, **changed)  # type: ignore[arg-type]


def _value(name: str, text: str) -> object:
    """A typed value as the field has it; what it may be is checked by the field."""
    default = sampling_default(name)
    if text == "default":
        return default
    if default is None and text in ("none", "off"):
        return None
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    if holds_texts(name) and not isinstance(value, str | list):
        value = text  # as 5, which JSON takes for a number
    if isinstance(default, Mapping):
        return _mapping(value)
    if isinstance(default, tuple):
        return tuple(value) if isinstance(value, list) else (value,)
    if isinstance(default, str):
        return text
    return value


def _mapping(value: object) -> object:
    """Token ids to numbers, from a JSON object or from ID=X with spaces between several."""
    if isinstance(value, str) and "=" in value:
        value = dict(part.partition("=")[::2] for part in value.split())
    if not isinstance(value, dict):
        return value
    try:
        return {int(key): float(bias) for key, bias in value.items()}
    except (TypeError, ValueError):
        return value


def _shown(value: object) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{key}={bias:g}" for key, bias in value.items()) or "none"
    if isinstance(value, tuple | list):
        return json.dumps(list(value), ensure_ascii=False) if value else "none"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)

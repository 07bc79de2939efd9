"""Render a conversation with a checkpoint's own chat template.

Templates are Jinja programs that come with the weights, so they run in a sandbox. What they find
there is what published ones are written for: trimmed blocks, loop controls, `raise_exception`,
`strftime_now`, a `tojson` that leaves text readable, and `{% generation %}` blocks.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NoReturn

from mtplx.errors import CheckpointError, UsageError
from mtplx.text.tags import Part, template_tags

if TYPE_CHECKING:
    import jinja2

# How templates ask a message for what was thought.
_REASONING_FIELD = re.compile(r"""[.'"](reasoning_content|reasoning|thinking)\b""")


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation.

    role: system, user, assistant or another the model knows.
    reasoning: what a model thought before it said the content, without tags.
    """

    role: str
    content: str
    reasoning: str = ""


class _RefusedError(Exception):
    """What `raise_exception` in a template raises."""


def render_chat(
    template: str,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = True,
    **switches: object,
) -> str:
    """The text of a conversation as the model was taught to see it.

    Reasoning is given to a template in the form that it reads: a field of the message, or in front
    of the content between tags that it looks for. Others do not get it.
    add_generation_prompt: end with the opening of the assistant's turn.
    switches: further names the template may ask for, such as enable_thinking or bos_token. One it
        does not ask for changes nothing; `template_has` tells.
    Raises CheckpointError where the template is broken, UsageError where it refuses the messages.
    """
    compiled = _compiled(template)
    turns = [_turn(message, template) for message in messages]
    try:
        return compiled.render(
            {**switches, "messages": turns, "add_generation_prompt": add_generation_prompt}
        )
    except _RefusedError as refusal:
        roles = ", ".join(message.role for message in messages) or "none"
        raise UsageError(
            f"The model's chat template refuses this conversation: {refusal}. The roles are: "
            f"{roles}. Leave out the system prompt, or let user and assistant take turns."
        ) from refusal
    except Exception as error:  # a template is a program and can fail in any way
        raise _broken(error) from error


def template_has(template: str, name: str) -> bool:
    """Whether a template asks for a name, so that a switch of that name can have an effect.

    Raises CheckpointError where the template is broken.
    """
    from jinja2 import meta

    syntax = _compiled(template).environment.parse(template)
    return name in meta.find_undeclared_variables(syntax)


def _turn(message: Message, template: str) -> dict[str, str]:
    turn = {"role": message.role, "content": message.content}
    if not message.reasoning:
        return turn
    if (field := _REASONING_FIELD.search(template)) is not None:
        return {**turn, field[1]: message.reasoning}
    tags = next((tags for tags in template_tags(template) if tags.part is Part.REASONING), None)
    if tags is not None:
        thought = f"{tags.opening}\n{message.reasoning}\n{tags.closing}\n\n"
        turn["content"] = thought + message.content
    return turn


@lru_cache(maxsize=8)
def _compiled(template: str) -> "jinja2.Template":
    import jinja2

    try:
        return _environment().from_string(template)
    except (jinja2.TemplateError, RecursionError) as error:
        raise _broken(error) from error


def _environment() -> "jinja2.Environment":
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import Node
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}…{% endgeneration %}` marks text for training; here it is only text."""

        tags = {"generation"}  # noqa: RUF012, the attribute jinja2 declares

        def parse(self, parser: Parser) -> list[Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    import json

    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _refuse(reason: object) -> NoReturn:
    raise _RefusedError(str(reason).strip().rstrip("."))


def _strftime_now(form: str) -> str:
    from datetime import datetime

    return datetime.now().strftime(form)


def _broken(error: BaseException) -> CheckpointError:
    line, reason = getattr(error, "lineno", None), str(error).rstrip(".")
    place = f" at line {line}" if line is not None else ""
    return CheckpointError(
        f"The model's chat template fails{place}: {type(error).__name__}: {reason}. "
        "Use the template of the model's current release, or generate without a template."
    )

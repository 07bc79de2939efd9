from datetime import UTC, datetime

import pytest

from mtplx.errors import CheckpointError, UsageError
from mtplx.text.template import Message, render_chat, template_has

CHATML = (
    "{% for message in messages %}\n"
    "    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\n"
    "{%- endfor %}\n"
    "{% if add_generation_prompt %}\n"
    "    {{- '<|im_start|>assistant\\n' }}\n"
    "    {%- if enable_thinking is defined and enable_thinking is false %}\n"
    "        {{- '<think>\\n\\n</think>\\n\\n' }}\n"
    "    {%- endif %}\n"
    "{%- endif %}"
)
TURNS = [Message("system", "Be brief."), Message("user", "Hi {{ messages }} é")]


def test_a_conversation_is_rendered_in_the_templates_form() -> None:
    """Blocks are trimmed as published templates expect, and contents are never run as templates."""
    assert render_chat(CHATML, TURNS) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n"
        "<|im_start|>user\nHi {{ messages }} é<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_the_assistants_turn_is_opened_only_if_asked() -> None:
    """Without add_generation_prompt the text ends with the last message."""
    assert render_chat(CHATML, TURNS, add_generation_prompt=False).endswith("é<|im_end|>\n")


def test_a_switch_the_template_knows_changes_the_prompt() -> None:
    """enable_thinking reaches a template that asks for it, and `template_has` says so."""
    assert template_has(CHATML, "enable_thinking")
    assert render_chat(CHATML, TURNS, enable_thinking=False).endswith("</think>\n\n")


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ messages }}", False),
        ("{# enable_thinking #} enable_thinking {{ 'enable_thinking' }}", False),
        ("{% set enable_thinking = true %}{{ enable_thinking }}", False),
        ("{% if enable_thinking is defined %}x{% endif %}", True),
        (
            "{% if enable_thinking is not defined %}{% set enable_thinking = true %}{% endif %}"
            "{{ enable_thinking }}",
            True,
        ),
    ],
)
def test_a_switch_without_effect_can_be_told(template: str, expected: bool) -> None:
    """Only a template that reads the name from outside has the switch."""
    assert template_has(template, "enable_thinking") is expected


def test_what_published_templates_use_is_there() -> None:
    """Loop controls, generation blocks, readable tojson and the date work."""
    template = (
        "{% for message in messages %}{% if loop.first %}{% continue %}{% endif %}"
        "{% generation %}{{ {'é<': message.content} | tojson }}{% endgeneration %}{% endfor %}"
        "{{ strftime_now('%Y') }}"
    )
    years = {str(datetime.now(UTC).year + offset) for offset in (-1, 0, 1)}
    rendered = render_chat(template, [Message("user", "a"), Message("user", "b")])
    assert rendered[:-4] == '{"é<": "b"}'
    assert rendered[-4:] in years


def test_a_refusal_by_the_template_is_a_usage_error_with_its_reason() -> None:
    """raise_exception in a template tells the user what it does not accept."""
    template = "{{ raise_exception('Roles must alternate.') }}"
    with pytest.raises(UsageError, match=r"Roles must alternate\. The roles are: system, user"):
        render_chat(template, TURNS)


@pytest.mark.parametrize(
    "template",
    [
        "{% if %}",
        "{% for x in messages %}",
        "{{ undefined_name.field.other }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 / 0 }}",
        "{{ 'x' | no_such_filter }}",
        "{% for i in range(10 ** 9) %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    ],
)
def test_a_template_that_fails_is_a_named_error(template: str) -> None:
    """Whatever goes wrong in a template is a CheckpointError about the template."""
    with pytest.raises(CheckpointError, match="chat template fails"):
        render_chat(template, TURNS)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ render_chat.__globals__ }}",
        "{{ raise_exception.__globals__['sys'] }}",
        "{{ cycler.__init__.__globals__ }}",
        "{% set n = namespace() %}{{ n.__init__.__globals__ }}",
    ],
)
def test_a_template_cannot_leave_the_sandbox(template: str) -> None:
    """Templates come with foreign weights; reaching into Python or changing messages fails."""
    with pytest.raises(CheckpointError, match="chat template fails"):
        render_chat(template, TURNS)

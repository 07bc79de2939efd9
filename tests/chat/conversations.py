"""Conversations with tiny models, without a terminal."""

from itertools import count
from pathlib import Path

from mtplx.chat.archive import Archive
from mtplx.chat.command import Desk, Outcome
from mtplx.chat.commands import find_command
from mtplx.chat.entry import Entry
from mtplx.chat.session import Begun, Conversation, Reply
from mtplx.generate import Result
from mtplx.params import SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=24)
ALL_ROUNDS = 10_000


def say(conversation: Conversation, text: str, *, num_rounds: int = ALL_ROUNDS) -> Result:
    """A turn, stopped after so many rounds."""
    return hear(conversation, conversation.begin(text), num_rounds=num_rounds)


def again(conversation: Conversation) -> Result:
    """The last message answered once more."""
    return hear(conversation, conversation.begin_again())


def hear(conversation: Conversation, reply: Reply, *, num_rounds: int = ALL_ROUNDS) -> Result:
    """A reply to its end, as the terminal takes it in."""
    rounds = count(1)
    text = ""
    result: Result | None = None
    for item in reply(lambda: next(rounds) >= num_rounds):
        if isinstance(item, Begun):
            if item.fitted.num_dropped:
                first = conversation.transcript.first + item.fitted.num_dropped
                conversation.leave_out(first)
            continue
        text += item.text
        result = item.result
    assert result is not None
    conversation.end(text, finish=result.finish_reason)
    return result


def run(conversation: Conversation, line: str, archive: Archive | None = None) -> Outcome:
    """What a typed command leads to."""
    found = find_command(Entry(line))
    assert found is not None
    command, argument = found
    folder = archive or conversation.archive or Archive(Path("/nowhere"))
    return command.run(Desk(folder, conversation), argument)

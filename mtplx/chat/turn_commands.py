"""Commands about what was said: take it back, have it answered again, show figures."""

from mtplx.chat.command import Desk, Next, Outcome
from mtplx.chat.report import totals
from mtplx.errors import UsageError


def regenerate(desk: Desk, argument: str) -> Outcome:
    conversation = desk.conversation
    if not conversation.messages or conversation.messages[-1].role != "assistant":
        raise UsageError("There is no reply to be made again.")
    same = "At temperature 0 the same settings give the same reply."
    lines = [] if conversation.settings.params.draws_randomly else [same]
    return Outcome(lines, next=Next.ANSWER)


def undo(desk: Desk, argument: str) -> Outcome:
    if not desk.conversation.messages:
        raise UsageError("There is nothing to take back.")
    said = desk.conversation.take_back()
    left = sum(message.role == "user" for message in desk.conversation.messages)
    return Outcome([f"Your last message was taken back; {left} before it."], draft=said)


def edit(desk: Desk, argument: str) -> Outcome:
    return Outcome(draft=argument, edits=True)


def show_totals(desk: Desk, argument: str) -> Outcome:
    return Outcome(totals(desk.conversation), 11)

"""What a conversation is made of."""

from mtplx.chat.settings import Settings
from mtplx.chat.transcript import Record, Transcript, opened, perform, records_of

REPLY: Record = {"type": "assistant", "text": "b", "reasoning": ""}
ASKED: Record = {"type": "user", "text": "a"}


def after(*records: Record) -> Transcript:
    talk = Transcript("m", Settings(), seed=7)
    for record in records:
        perform(talk, record)
    return talk


def test_the_first_reply_has_the_seed_of_the_conversation() -> None:
    """So that `generate` with this seed gives the same."""
    assert after(ASKED).reply_seed == 7


def test_no_two_replies_share_a_seed() -> None:
    """Neither with one that was made again, nor with one that was taken back."""
    talk, seeds = after(ASKED), []
    for step in ("regen", "undo", "regen", "user", "undo", "user") * 5:
        seeds.append(talk.reply_seed)
        perform(talk, REPLY)
        if step != "user":
            perform(talk, {"type": step})
        if step != "regen":
            perform(talk, ASKED)
    assert len(set(seeds)) == len(seeds) == 30


def test_a_conversation_is_read_back_as_it_was_kept() -> None:
    """One kept late too, with what was taken back, made again and left out before."""
    talk = after(ASKED, REPLY, ASKED, REPLY, {"type": "undo"}, ASKED, REPLY, {"type": "regen"})
    perform(talk, REPLY)
    perform(talk, {"type": "drop", "first": 2})
    first, *rest = records_of(talk)
    read = opened(first)
    for record in rest:
        perform(read, record)
    assert (read.messages, read.first, read.reply_seed) == (talk.messages, 2, talk.reply_seed)

"""What a conversation is made of."""

from mtplx.chat.settings import Settings
from mtplx.chat.transcript import Transcript
from mtplx.text.template import Message


def test_no_two_replies_share_a_seed() -> None:
    """Each turn and each time it is made again; the first has the conversation's own."""
    talk = Transcript("m", Settings(), seed=7, messages=[Message("user", "a")])
    assert talk.reply_seed == 7
    seeds = set()
    for _ in range(20):
        for talk.num_again in range(5):
            seeds.add(talk.reply_seed)
        talk.num_again = 0
        talk.messages += [Message("assistant", "b"), Message("user", "c")]
    assert len(seeds) == 100

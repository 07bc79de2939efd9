"""The text of a reply as its tokens come, and where it ends."""

from collections.abc import Collection, Sequence

from mtplx.text.detokenise import Detokeniser, TokenBytes
from mtplx.text.stops import StopMatcher


class ReplyText:
    """The text and ids of a reply so far.

    Tokens are taken one by one, so that a reply ends at the same token and the same character
    however many of them a round brings. show: special tokens that are text by name.
    """

    def __init__(
        self, tokenizer: TokenBytes, stops: Sequence[str], *, show: Collection[int] = ()
    ) -> None:
        self.text = ""
        self.token_ids: list[int] = []
        self._detokeniser = Detokeniser(tokenizer, show=show)
        self._stops = StopMatcher(stops)
        self._taken = (0, 0)  # characters and ids

    def add(self, token_ids: Sequence[int], reason: str | None) -> str | None:
        """Take in a round, as far as it belongs to the reply; gives why the reply ends, or None.

        reason: why the round says that it ends, or None; after "stop" the last token is an end
            token, which is no text.
        """
        end_token = len(token_ids) - 1 if reason == "stop" else None
        for i, token_id in enumerate(token_ids):
            self.token_ids.append(token_id)
            detokeniser = self._detokeniser
            text = detokeniser.finish() if i == end_token else detokeniser.push([token_id])
            settled, ended = self._stops.push(text)
            self.text += settled
            if ended:
                return "stop"
        return None if reason is None else self.end(reason)

    def take(self) -> tuple[str, tuple[int, ...]]:
        """What was added since the last call."""
        num_characters, num_ids = self._taken
        self._taken = (len(self.text), len(self.token_ids))
        return self.text[num_characters:], tuple(self.token_ids[num_ids:])

    def end(self, reason: str) -> str:
        """Nothing follows, so what might have become a stop string is text; gives why it ends."""
        settled, ended = self._stops.finish()
        self.text += settled
        return "stop" if ended else reason

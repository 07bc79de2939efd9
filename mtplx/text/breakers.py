"""Which tokens end a passage, for penalties on repeating one."""

from functools import lru_cache

from mtplx.errors import SamplingError
from mtplx.loading.tokenizer import Tokenizer


@lru_cache(maxsize=8)
def breaker_ids(tokenizer: Tokenizer, texts: tuple[str, ...]) -> tuple[int, ...]:
    """The tokens whose text holds one of these, and those that are not text, ascending.

    Raises SamplingError for a text that no single token holds.
    """
    wanted = {text: text.encode() for text in texts}
    found, missing = set(tokenizer.hidden_ids), set(texts)
    for token_id in range(tokenizer.vocab_size):
        held = tokenizer.token_bytes(token_id)
        holds = {text for text, content in wanted.items() if content in held}
        if holds:
            found.add(token_id)
            missing -= holds
    if missing:
        raise SamplingError(
            f"dry_breakers has {min(missing)!r}, which is in no single token of this model. "
            "Leave it out, or name something shorter."
        )
    return tuple(sorted(found))

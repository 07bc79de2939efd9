"""What `mtplx train-head` does, as data."""

from dataclasses import dataclass
from pathlib import Path

from mtplx.training.loop import Stage
from mtplx.training.worker import CHUNK_LENGTH, CHUNK_ROWS

CHUNK_TOKENS = CHUNK_ROWS * CHUNK_LENGTH


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole training run.

    own_tokens: how much text the trunk writes for it. texts: files of ordinary text and code.
    text_tokens: at most so much of them. shortlist_size: vocabulary ids that drafts come from.
    """

    model: str
    folder: Path
    own_tokens: int = 400_000
    texts: tuple[Path, ...] = ()
    text_tokens: int = 160_000
    shortlist_size: int = 8192
    num_blocks: int = 1
    one_step: int = 2400
    unrolled: int = 800
    num_workers: int = 2
    seed: int = 1

    @property
    def num_chunks(self) -> int:
        return max(1, -(-self.own_tokens // CHUNK_TOKENS))

    @property
    def stages(self) -> tuple[Stage, ...]:
        """One step deep first, where it learns fastest; then on its own recycled state."""
        return (
            Stage(self.one_step, (1.0,), 6e-4, 3e-4),
            Stage(self.unrolled, (1.0, 0.7, 0.5), 4e-4, 1e-5),
        )

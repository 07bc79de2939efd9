"""What `mtplx train-head` does, as data."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from mtplx.training.engine import Engine
from mtplx.training.loop import Stage


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole training run.

    own_tokens: how much text the trunk writes for it. texts: files of ordinary text and code.
    text_tokens: at most so much of them. shortlist_size: vocabulary ids that drafts come from.
    one_step, unrolled: steps of the two stages. num_workers: processes that write text, None for
    as many as the machine is good for; it changes no result. engine: what writes and trains.

    The sizes below are what the defaults of the command were found with.
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
    num_workers: int | None = None
    seed: int = 1
    engine: Engine = "mlx"
    passage_length: int = 384  # tokens of a passage
    rows_per_chunk: int = 64  # passages that a process writes side by side into one file
    num_windows: int = 8  # of a batch
    num_anchors: int = 256  # of a window
    prompts_per_class: int | None = None  # of the shipped prompts, to measure on; None for all
    reply_tokens: int = 96  # to each of them, at most
    steps_per_checkpoint: int = 100
    steps_per_measurement: int = 400

    @property
    def chunk_tokens(self) -> int:
        return self.rows_per_chunk * self.passage_length

    @property
    def num_chunks(self) -> int:
        return max(1, -(-self.own_tokens // self.chunk_tokens))

    @property
    def stages(self) -> tuple[Stage, ...]:
        """One step deep first, where it learns fastest; then on its own recycled state."""
        windows = (self.num_windows, self.num_anchors)
        return (
            Stage(self.one_step, (1.0,), 8e-4, 6e-4, *windows),
            Stage(self.unrolled, (1.0, 0.7, 0.5), 6e-4, 1e-5, *windows),
        )

    def to_json(self) -> str:
        """One line, for another process."""
        return json.dumps(asdict(self), default=str)


def plan_from_json(line: str) -> Plan:
    """The plan that `to_json` wrote."""
    fields = json.loads(line)
    texts = tuple(Path(text) for text in fields.pop("texts"))
    return Plan(**{**fields, "folder": Path(fields["folder"]), "texts": texts})

"""Training that can be stopped at any moment and taken up where it was."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from mtplx.errors import TrainingError
from mtplx.files import replacing
from mtplx.training.loop import AdamW, Parameters


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything a run needs to go on. `step` steps of `stage` are done."""

    parameters: Parameters
    optimiser: AdamW
    shortlist: mx.array
    stage: int
    step: int


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint at `path`."""
    state = checkpoint.optimiser
    tensors = {"shortlist": checkpoint.shortlist}
    groups = {"value": checkpoint.parameters, "first": state.first, "second": state.second}
    for group, values in groups.items():
        tensors |= {f"{group}/{name}": value for name, value in values.items()}
    counts = {"stage": checkpoint.stage, "step": checkpoint.step, "num_steps": state.num_steps}
    with replacing(path) as part:
        mx.save_safetensors(str(part), tensors, {k: str(v) for k, v in counts.items()})


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint at `path`. TrainingError if it is not one."""
    try:
        loaded: Any = mx.load(str(path), return_metadata=True)
        tensors, metadata = loaded
        shortlist = tensors.pop("shortlist")
        groups: dict[str, Parameters] = {"value": {}, "first": {}, "second": {}}
        for key, value in tensors.items():
            group, name = key.split("/", 1)
            groups[group][name] = value
        optimiser = AdamW(groups["first"], groups["second"], int(metadata["num_steps"]))
        stage, step = int(metadata["stage"]), int(metadata["step"])
    except (RuntimeError, KeyError, ValueError) as error:
        raise TrainingError(f"{path} is not a training checkpoint: {error}. Delete it.") from error
    return Checkpoint(groups["value"], optimiser, shortlist, stage, step)

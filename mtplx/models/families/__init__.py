"""The families whose MTP heads are known, by the model types of config.json."""

from collections.abc import Iterator
from importlib import import_module

from mtplx.models.family import MtpFamily

FILES = (
    "qwen3_5",
    "qwen3_next",
    "bailing",
    "deepseek",
    "ernie",
    "exaone",
    "glm",
    "longcat",
    "mimo",
    "mimo_v2",
    "nemotron",
    "sparse",
    "step",
)


def families() -> Iterator[MtpFamily]:
    """Every family, in the order of the files."""
    for file in FILES:
        yield from import_module(f"mtplx.models.families.{file}").FAMILIES


def family_of(model_type: object) -> MtpFamily | None:
    """The family that a configuration's `model_type` names."""
    return next((family for family in families() if model_type in family.model_types), None)

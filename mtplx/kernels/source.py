"""Metal functions out of mtplx.metal, made into kernels once each."""

from collections.abc import Callable, Sequence
from functools import cache
from importlib.resources import files
from typing import Any, Protocol, TypeAlias

import mlx.core as mx

Size = tuple[int, int, int]
Template = Sequence[tuple[str, Any]]


class Kernel(Protocol):
    """What `mx.fast.metal_kernel` returns."""

    def __call__(
        self,
        *,
        inputs: Sequence[Any],
        template: Template,
        grid: Size,
        threadgroup: Size,
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[mx.Dtype],
    ) -> list[mx.array]: ...


# `mx.fast.metal_kernel`, or what runs kernels in its place on a machine without a GPU: called with
# name, names of inputs, names of outputs, source and header.
Maker: TypeAlias = Callable[[str, Sequence[str], Sequence[str], str, str], Kernel]


def metal(
    name: str, input_names: Sequence[str], output_names: Sequence[str], source: str, header: str
) -> Kernel:
    """MLX's own maker, for Apple's GPUs."""
    make: Any = mx.fast.metal_kernel
    made: Kernel = make(
        name=name,
        input_names=list(input_names),
        output_names=list(output_names),
        source=source,
        header=header,
    )
    return made


@cache
def text(name: str) -> str:
    """The functions of one file of mtplx.metal."""
    return files("mtplx.metal").joinpath(f"{name}.metal").read_text(encoding="utf-8")


def header(names: Sequence[str]) -> str:
    """The functions of several files, in this order."""
    return "\n".join(text(name) for name in names)

"""Makers of kernels that the emulator runs, for functions of mtplx.kernels."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import mlx.core as mx

from tests.metal_host.dtypes import to_mlx
from tests.metal_host.host_kernel import HostKernel, Result, metal_kernel
from tests.metal_host.launch import Mode


def fast(
    name: str, inputs: Sequence[str], outputs: Sequence[str], source: str, header: str
) -> HostKernel:
    """Runs kernels for their results."""
    return metal_kernel(name, inputs, outputs, source, header)


def checked(
    name: str, inputs: Sequence[str], outputs: Sequence[str], source: str, header: str
) -> HostKernel:
    """Runs kernels in the checked build; a finding is an error."""
    return metal_kernel(name, inputs, outputs, source, header, mode=Mode(checked=True))


@dataclass(frozen=True, slots=True)
class Watched:
    """A kernel that keeps what was seen of each call."""

    kernel: HostKernel
    results: list[Result]

    def __call__(self, **call: Any) -> list[mx.array]:
        result = self.kernel.run(**call)
        self.results.append(result)
        return [to_mlx(output) for output in result.outputs]


@dataclass(eq=False, slots=True)
class Watch:
    """A maker that keeps what was seen of each call: findings, accesses, operations, text.

    replace: pieces of the kernels' text and what stands in their place, for planted faults.
    """

    checked: bool = False
    counted: bool = False
    replace: dict[str, str] = field(default_factory=dict)
    results: list[Result] = field(default_factory=list)

    def __call__(
        self, name: str, inputs: Sequence[str], outputs: Sequence[str], source: str, header: str
    ) -> Watched:
        for old, new in self.replace.items():
            assert old in header, old
            header = header.replace(old, new)
        mode = Mode(checked=self.checked, record=self.checked)
        kernel = metal_kernel(
            name, inputs, outputs, source, header, mode=mode, counted=self.counted
        )
        return Watched(kernel, self.results)

"""`mx.fast.metal_kernel` for machines without a GPU: the same call, run by the emulator."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from tests.metal_host.build import Flavour, build
from tests.metal_host.dtypes import Array, name_of, numpy_dtype, to_mlx, to_numpy
from tests.metal_host.launch import Argument, Mode, Outcome, Size, launch
from tests.metal_host.text import Generated, Kernel, Parameter, Template, generate
from tests.metal_host.traffic import fetched_bytes

MAX_THREADS = 1024
FAST = Mode()


class KernelError(AssertionError):
    """A kernel did something that it must not; the findings."""


@dataclass(frozen=True, slots=True)
class Result:
    """Outputs of a call and what was seen of it."""

    outputs: list[Array]
    outcome: Outcome
    module: Path
    text: str
    num_threads: int
    buffer_names: tuple[str, ...]

    @property
    def findings(self) -> list[str]:
        return self.outcome.findings

    def fetched(self) -> dict[str, int]:
        """Bytes read per buffer, if accesses were recorded (traffic.py)."""
        return fetched_bytes(self.outcome.accesses, self.buffer_names)


@dataclass(frozen=True, slots=True)
class HostKernel:
    """What `metal_kernel` returns: call it as MLX's, or `run` it to see more."""

    kernel: Kernel
    contiguous: bool
    mode: Mode
    flavour: Flavour

    def __call__(
        self,
        *,
        inputs: Sequence[Any],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[Any],
        grid: Size,
        threadgroup: Size,
        template: Template | None = None,
        init_value: float | None = None,
    ) -> list[mx.array]:
        """Outputs as MLX gives them.

        Raises KernelError with the findings, if there are any.
        """
        result = self.run(
            inputs=inputs,
            output_shapes=output_shapes,
            output_dtypes=output_dtypes,
            grid=grid,
            threadgroup=threadgroup,
            template=template,
            init_value=init_value,
        )
        if result.findings:
            raise KernelError("\n".join(result.findings))
        return [to_mlx(output) for output in result.outputs]

    def run(
        self,
        *,
        inputs: Sequence[Any],
        output_shapes: Sequence[Sequence[int]],
        output_dtypes: Sequence[Any],
        grid: Size,
        threadgroup: Size,
        template: Template | None = None,
        init_value: float | None = None,
    ) -> Result:
        """Outputs as numpy arrays, and everything that was found."""
        given = self._inputs(inputs)
        dtypes = [name_of(dtype) for dtype in output_dtypes]
        generated = generate(self.kernel, given, dtypes, template or [])
        size = [min(a, b) for a, b in zip(threadgroup, grid, strict=True)]
        if int(np.prod(size)) > MAX_THREADS:
            raise ValueError(
                f"{np.prod(size)} threads in a threadgroup, the limit is {MAX_THREADS}"
            )
        module = build(generated.text, generated.instance, self.flavour)
        outputs = [
            np.full(shape, 0 if init_value is None else init_value, numpy_dtype(dtype))
            for shape, dtype in zip(output_shapes, dtypes, strict=True)
        ]
        arguments = self._arguments(generated, given, outputs, init_value is not None)
        outcome = launch(module, arguments, grid, threadgroup, self.mode)
        names = tuple(a.name for a in arguments if isinstance(a, Argument))
        num_threads = int(np.prod(grid))
        return Result(outputs, outcome, module, generated.text, num_threads, names)

    def _inputs(self, inputs: Sequence[Any]) -> list[Array]:
        given = [to_numpy(value) for value in inputs]
        if self.contiguous:
            given = [np.ascontiguousarray(a) if a.ndim else a for a in given]
        return given

    def _arguments(
        self,
        generated: Generated,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        initialised: bool,
    ) -> list[Argument | int]:
        def argument(parameter: Parameter) -> Argument | int:
            if parameter.kind == "builtin":
                return parameter.index
            if parameter.kind == "output":
                name = self.kernel.output_names[parameter.index]
                return Argument(name, outputs[parameter.index], True, initialised)
            name, array = self.kernel.input_names[parameter.index], inputs[parameter.index]
            if parameter.kind == "input":
                return Argument(name, array)
            return Argument(f"{name}_{parameter.kind}", _fact(parameter.kind, array))

        return [argument(parameter) for parameter in generated.parameters]


def _fact(kind: str, array: Array) -> Array:
    if kind == "shape":
        return np.array(array.shape, np.int32)
    if kind == "strides":
        return np.array([stride // array.itemsize for stride in array.strides], np.int64)
    return np.array([array.ndim], np.int32)


def metal_kernel(
    name: str,
    input_names: Sequence[str],
    output_names: Sequence[str],
    source: str,
    header: str = "",
    ensure_row_contiguous: bool = True,
    atomic_outputs: bool = False,
    *,
    mode: Mode = FAST,
    counted: bool = False,
) -> HostKernel:
    """Takes what `mx.fast.metal_kernel` takes, and how to run it."""
    kernel = Kernel(name, tuple(input_names), tuple(output_names), source, header, atomic_outputs)
    flavour: Flavour = "counted" if counted else "checked" if mode.checked else "fast"
    return HostKernel(kernel, ensure_row_contiguous, mode, flavour)

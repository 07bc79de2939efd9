"""The text that `mx.fast.metal_kernel` hands to Metal, character for character.

Source: mlx/backend/common/metal_kernel.cpp. A test compares it with what MLX prints.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tests.metal_host.dtypes import IN_TEXT, Array, name_of

# In MLX's order, with their types. The runtime fills them in this order too.
BUILTINS = {
    "dispatch_quadgroups_per_threadgroup": "uint",
    "dispatch_simdgroups_per_threadgroup": "uint",
    "dispatch_threads_per_threadgroup": "uint3",
    "grid_origin": "uint3",
    "grid_size": "uint3",
    "quadgroup_index_in_threadgroup": "uint",
    "quadgroups_per_threadgroup": "uint",
    "simdgroup_index_in_threadgroup": "uint",
    "simdgroups_per_threadgroup": "uint",
    "thread_execution_width": "uint",
    "thread_index_in_quadgroup": "uint",
    "thread_index_in_simdgroup": "uint",
    "thread_index_in_threadgroup": "uint",
    "thread_position_in_grid": "uint3",
    "thread_position_in_threadgroup": "uint3",
    "threadgroup_position_in_grid": "uint3",
    "threadgroups_per_grid": "uint3",
    "threads_per_grid": "uint3",
    "threads_per_simdgroup": "uint",
    "threads_per_threadgroup": "uint3",
}
BUILTIN_INDEX = {name: index for index, name in enumerate(BUILTINS)}
_OF_SHAPE = {"shape": "int*", "strides": "int64_t*", "ndim": "int&"}
_FEW = 8  # elements below which MLX passes an input in constant memory


@dataclass(frozen=True, slots=True)
class Kernel:
    """What does not change between calls: the parameters of `mx.fast.metal_kernel`."""

    name: str
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    source: str
    header: str = ""
    atomic_outputs: bool = False


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of the kernel: where its value comes from."""

    kind: Literal["input", "shape", "strides", "ndim", "output", "builtin"]
    index: int  # of the input, output or built-in


@dataclass(frozen=True, slots=True)
class Generated:
    """The text, what to call in it, and the parameters in order."""

    text: str
    instance: str
    parameters: tuple[Parameter, ...]


Template = Sequence[tuple[str, Any]]


def generate(
    kernel: Kernel, inputs: Sequence[Array], output_dtypes: Sequence[str], template: Template
) -> Generated:
    """The text for these inputs; output_dtypes are names of dtypes."""
    arguments = "<" + ", ".join(_argument(value) for _, value in template) + ">"
    name = _name(kernel, inputs, output_dtypes, arguments if template else "")
    parts = [kernel.header]
    if template:
        parts.append("template <" + ", ".join(_declared(*item) for item in template) + ">\n")
    parts.append(f"[[kernel]] void {name}(\n")
    signature, parameters = _signature(kernel, inputs, output_dtypes)
    parts += [*signature, kernel.source, "\n}\n"]
    if not template:
        return Generated("".join(parts), name, parameters)
    instance = name + arguments
    parts.append(
        f'\ntemplate [[host_name("{name}")]] [[kernel]] decltype({instance}) {instance};\n'
    )
    return Generated("".join(parts), instance, parameters)


def _argument(value: Any) -> str:
    return str(int(value)) if isinstance(value, int) else IN_TEXT[name_of(value)]


def _declared(name: str, value: Any) -> str:
    kind = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "typename"
    return f"{kind} {name}"


def _name(
    kernel: Kernel, inputs: Sequence[Array], output_dtypes: Sequence[str], arguments: str
) -> str:
    name = "custom_kernel_" + kernel.name
    if arguments:
        for old, new in (("<", "_"), (">", "_"), (", ", "_"), ("-", "_")):
            arguments = arguments.replace(old, new)
        name += "_" + arguments[:-1]
    for array in inputs:
        suffix = "s" if array.ndim == 0 else "c" if array.size < _FEW else ""
        name += f"_{IN_TEXT[array.dtype.name]}{suffix}"
    return name + "".join(f"_{IN_TEXT[dtype]}" for dtype in output_dtypes)


def _signature(
    kernel: Kernel, inputs: Sequence[Array], output_dtypes: Sequence[str]
) -> tuple[list[str], tuple[Parameter, ...]]:
    lines: list[str] = []
    parameters: list[Parameter] = []
    for i, (name, array) in enumerate(zip(kernel.input_names, inputs, strict=True)):
        for kind, ctype, shown in _of_input(name, array, kernel.source):
            lines.append(f"  const {ctype} {shown} [[buffer({len(lines)})]],\n")
            parameters.append(Parameter(kind, i))
    builtins = [name for name in BUILTINS if name in kernel.source]
    num_fixed = len(inputs) + len(kernel.output_names)
    for i, (name, dtype) in enumerate(zip(kernel.output_names, output_dtypes, strict=True)):
        ctype = f"atomic<{IN_TEXT[dtype]}>" if kernel.atomic_outputs else IN_TEXT[dtype]
        # MLX counts no shape parameters here, so without built-ins it may close the list early.
        more = len(lines) < num_fixed - 1 or builtins
        end = ",\n" if more else ") {\n"
        lines.append(f"  device {ctype}* {name} [[buffer({len(lines)})]]{end}")
        parameters.append(Parameter("output", i))
    for i, name in enumerate(builtins):
        end = ",\n" if i < len(builtins) - 1 else ") {\n"
        lines.append(f"  {BUILTINS[name]} {name} [[{name}]]{end}")
        parameters.append(Parameter("builtin", BUILTIN_INDEX[name]))
    return lines, tuple(parameters)


def _of_input(name: str, array: Array, source: str) -> list[tuple[Any, str, str]]:
    """(kind, type, name) of an input and of what the source asks about its shape."""
    space = "constant" if array.size < _FEW else "device"
    mark = "&" if array.ndim == 0 else "*"
    found: list[tuple[Any, str, str]] = [
        ("input", f"{space} {IN_TEXT[array.dtype.name]}{mark}", name)
    ]
    if array.ndim > 0:
        for kind, ctype in _OF_SHAPE.items():
            if f"{name}_{kind}" in source:
                found.append((kind, f"constant {ctype}", f"{name}_{kind}"))
    return found

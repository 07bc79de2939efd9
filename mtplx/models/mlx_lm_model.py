"""mlx-lm's model classes, built from a configuration and filled with tensors, strictly.

mlx-lm's own loader reads `model*.safetensors` and drops the tensors of an MTP head. Here building,
naming and filling are apart, so that a head can be filled like a trunk.
"""

from collections.abc import Mapping
from typing import Any

import mlx.core as mx

from mtplx.errors import UnsupportedTensorError
from mtplx.models.family import Config, MtpFamily, Tensors, text_config
from mtplx.models.mla import absorb_short_blocks
from mtplx.models.quantisation import quantise_modules


def adapted(config: Config, family: MtpFamily | None) -> dict[str, Any]:
    """config.json in the words that mlx-lm reads."""
    if family is None:
        return dict(config)
    text = dict(family.adapt_config(text_config(config)))
    if text_config(config) is config:
        return text | {"model_type": family.model_types[0]}
    return {**config, "model_type": family.model_types[0], "text_config": text}


def dense_model(config: Config) -> Any:
    """mlx_lm's Model for a configuration, its parameters not drawn yet.

    On a CPU this turns off MLX's compiling in this process: it starts a C++ compiler, for a hybrid
    of 134M parameters 8 s of work before the first token, and passes were no faster for it.
    Takes seconds where mlx_lm has not been imported. What a configuration lacks is a KeyError,
    TypeError, AttributeError or ValueError of mlx-lm's.
    """
    from mlx_lm.utils import _get_classes

    if mx.default_device() == mx.Device(mx.cpu):
        mx.disable_compile()
    model_class, arguments_class = _get_classes(dict(config))
    model = model_class(arguments_class.from_dict(dict(config)))
    absorb_short_blocks(model)
    return model


def sanitised(model: Any, tensors: Tensors) -> Tensors:
    """A checkpoint's tensors under the names of the model's module tree."""
    named: Tensors = model.sanitize(tensors) if hasattr(model, "sanitize") else tensors
    return named


def fill(module: Any, weights: Tensors, config: Config) -> None:
    """Pack the module's matrices as the weights are and take the weights in; all or an error.

    weights: by the names of its module tree. config: config.json, which may say how they are
    packed. Raises CheckpointError or UnsupportedTensorError, naming a tensor.
    """
    quantise_modules(module, weights, config)
    problem = mismatch(module, weights)
    if problem is not None:
        raise UnsupportedTensorError(problem)
    module.eval()
    module.load_weights(list(weights.items()), strict=True)
    if mx.default_device() == mx.Device(mx.cpu):
        _widen_experts(module)


def _widen_experts(module: Any) -> None:
    """Stacks of dense experts in float32: MLX multiplies gathered matrices on a CPU in no other
    type."""
    from mlx_lm.models.switch_layers import SwitchLinear

    for _, part in module.named_modules():
        if isinstance(part, SwitchLinear):
            part.weight = part.weight.astype(mx.float32)


def mismatch(module: Any, weights: Mapping[str, mx.array]) -> str | None:
    """The first tensor that is missing, left over, or of another shape than its parameter."""
    from mlx.utils import tree_flatten

    parameters = dict(tree_flatten(module.parameters()))
    for name in sorted(parameters.keys() - weights.keys()):
        return f"{name} is missing"
    for name in sorted(weights.keys() - parameters.keys()):
        return f"{name} is left over: no part of the model uses it"
    for name, array in weights.items():
        if array.shape != parameters[name].shape:
            needed = list(parameters[name].shape)
            return f"{name} is {list(array.shape)}, and config.json makes it {needed}"
    return None

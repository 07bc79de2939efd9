"""What training is computed with: MLX, or PyTorch, which is faster on some CPUs.

CPUs with matrix units for bfloat16 (AMX) multiply in it five to eight times as fast as in the
float32 that MLX has from its BLAS, and PyTorch uses them. The optimiser, the start and what is
measured are MLX's either way, so a run can go on with the other engine.
"""

from typing import TYPE_CHECKING, Literal

from mtplx.errors import UsageError

if TYPE_CHECKING:
    from mtplx.models.llama import LlamaTarget
    from mtplx.models.shortlist import Shortlist
    from mtplx.training.loop import Gradients
    from mtplx.training.own_text import Writer

Engine = Literal["mlx", "torch"]


def require(engine: Engine) -> None:
    """UsageError where the engine is not installed, or cannot be loaded."""
    if engine == "mlx":
        return
    try:
        import torch  # noqa: F401
    except (ImportError, OSError) as error:
        raise UsageError(
            f"--engine torch needs PyTorch, which cannot be imported ({error}). Run `python -m pip "
            "install 'torch>=2.13'`, or leave --engine out."
        ) from error


def make_gradients(engine: Engine, target: "LlamaTarget", shortlist: "Shortlist") -> "Gradients":
    """What gives a batch's loss and its gradients."""
    if engine == "torch":
        from mtplx.training.torch_gradients import torch_gradients

        return torch_gradients(target, shortlist)
    from mtplx.training.loop import default_streams, mlx_gradients

    return mlx_gradients(target, shortlist, default_streams())


def make_writer(engine: Engine, target: "LlamaTarget") -> "Writer":
    """What writes the trunk's own text."""
    if engine == "torch":
        from mtplx.training.torch_trunk import torch_writer

        return torch_writer(target)
    from mtplx.training.own_text import mlx_writer

    return mlx_writer(target)

"""Run language models with their own multi-token-prediction heads: exact, and faster.

The public names are resolved on first use, so that `import mtplx` costs nothing; the first of
them also chooses the BLAS that MLX will call (`mtplx.blas.preload`), which has to come before MLX.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from mtplx.errors import MtplxError

if TYPE_CHECKING:
    from mtplx.draft_options import DraftOptions
    from mtplx.generate import generate, stream
    from mtplx.loading.load import load
    from mtplx.sampling import SamplingParams

    __version__: str

__all__ = [
    "DraftOptions",
    "MtplxError",
    "SamplingParams",
    "__version__",
    "generate",
    "load",
    "stream",
]

_HOMES = {
    "generate": "mtplx.generate",
    "stream": "mtplx.generate",
    "load": "mtplx.loading.load",
    "SamplingParams": "mtplx.sampling",
    "DraftOptions": "mtplx.draft_options",
}


class _Package(ModuleType):
    # Importing the module mtplx.generate makes Python bind it to the name `generate` here, where
    # users expect the function. The function takes that place whatever is imported first.
    def __setattr__(self, name: str, value: Any) -> None:
        if name in _HOMES and isinstance(value, ModuleType):
            value = getattr(value, name)
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("mtplx")
        except PackageNotFoundError:
            return "0+unknown"  # a checkout that was never installed
    if name not in _HOMES:
        raise AttributeError(f"module 'mtplx' has no attribute {name!r}")
    from mtplx.blas import preload

    preload()
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""A fast BLAS for MLX on Linux, put in front of the reference BLAS that MLX's wheel carries.

Libraries loaded with RTLD_GLOBAL before `import mlx.core` answer for `cblas_sgemm` ahead of the one
libmlx was linked with. So `preload` has to come first, and `serving` reads from libmlx's own
relocation table which library it will really call. macOS has Accelerate; nothing is loaded there.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, get_args

from mtplx.errors import UsageError

Choice = Literal["auto", "mkl", "openblas", "mlx"]

# Builds with plain threads first, OpenMP and serial ones last.
_OPENBLAS = (
    "/usr/lib/*/openblas-pthread/libopenblas.so*",  # Debian, Ubuntu
    "/usr/lib64/openblas-pthreads/libopenblas.so*",  # openSUSE
    "/usr/lib64/libopenblasp.so*",  # Fedora
    "/usr/lib/libopenblasp.so*",
    "/usr/lib*/libopenblas.so*",  # Arch, Alpine
    "/usr/local/lib*/libopenblas.so*",
    "/opt/OpenBLAS/lib/libopenblas.so*",
    "/usr/lib/*/openblas-openmp/libopenblas.so*",
    "/usr/lib/*/openblas-serial/libopenblas.so*",
)
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Blas:
    """The linear algebra library that MLX's CPU matmul calls.

    name: "mkl", "openblas", "mlx" (the reference BLAS in MLX's wheel), "accelerate", or the file
        name of another library that something else in the process put in front.
    threads: threads it uses; None where it does not tell.
    notice: one line for the user when this is slow and can be mended, else None.
    confirmed: read from libmlx's relocation table, rather than expected from what is loaded.
    """

    name: str
    path: Path | None = None
    version: str | None = None
    threads: int | None = None
    notice: str | None = None
    confirmed: bool = False


def preload(choice: str = "auto") -> Blas:
    """Load the BLAS that MLX shall call and tell which it is; safe to call again.

    choice: "auto" takes the first of MKL, OpenBLAS and MLX's own that is there. "mlx" also imports
        MLX, so that no later call can put another one in front.

    Has no effect once `mlx.core` is imported or another BLAS stands in front: then the result is
    what serves. Raises UsageError for an unknown choice, or one that is not installed.
    """
    if choice not in get_args(Choice):
        raise UsageError(f"Unknown BLAS {choice!r}. Choose one of {', '.join(get_args(Choice))}.")
    if sys.platform != "linux" or "mlx.core" in sys.modules:
        return serving()
    if choice == "mlx":
        import mlx.core  # noqa: F401  (binds it to what is in front now)

        return serving()
    if (present := _in_front()) is not None:
        return _describe(present)
    failures: list[str] = []
    for kind, load in (("mkl", _load_mkl), ("openblas", _load_openblas)):
        if choice in ("auto", kind):
            try:
                return _describe(load())
            except OSError as error:
                failures.append(f"{kind}: {error}")
    if choice in ("mkl", "openblas"):
        raise UsageError(f"The BLAS {choice!r} cannot be loaded ({failures[0]}). {_remedy()}")
    return Blas("mlx", threads=1, notice=_notice())


def serving() -> Blas:
    """Which BLAS MLX's matmul calls in this process, read from libmlx itself where possible.

    Imports `mlx.core`, after `preload()`, if that has not been done.
    """
    if sys.platform != "linux":
        return Blas("accelerate" if sys.platform == "darwin" else "mlx")
    if "mlx.core" not in sys.modules:
        preload()
    import mlx.core  # noqa: F401  (libmlx has to be in the process)

    from mtplx.blas_binding import bound_library

    bound = bound_library("cblas_sgemm")
    if bound is not None:
        return replace(_describe(bound), confirmed=True)
    present = _in_front()
    return _describe(present) if present else Blas("mlx", threads=1, notice=_notice())


def num_cores() -> int:
    """Physical cores this process may use: affinity and a container's quota taken off."""
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {0}
    siblings = set()
    for cpu in allowed:
        file = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            siblings.add(file.read_text().strip())
        except OSError:
            siblings.add(str(cpu))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        limit = len(siblings) if quota == "max" else -(-int(quota) // int(period))
    except (OSError, ValueError):
        limit = len(siblings)
    return max(1, min(len(siblings), limit))


def _in_front() -> Path | None:
    """The library whose cblas_sgemm a library loaded from now on would find first."""
    from mtplx.blas_binding import library_of

    try:
        function = ctypes.CDLL(None).cblas_sgemm
    except AttributeError:
        return None
    return library_of(ctypes.cast(function, ctypes.c_void_p).value or 0)


def _load_mkl() -> Path:
    for rt in _mkl_candidates():
        # libmkl_rt ends the process, without an error we could catch, when these are missing.
        if not (list(rt.parent.glob("libmkl_core.so*")) and _openmp_of(rt)):
            continue
        ctypes.CDLL(str(_openmp_of(rt)), ctypes.RTLD_GLOBAL)
        mkl = ctypes.CDLL(str(rt), ctypes.RTLD_GLOBAL)
        # Stated, because MKL_INTERFACE_LAYER and MKL_THREADING_LAYER of other programs would
        # otherwise give 64-bit integers or another OpenMP. Both are 0 in mkl_service.h.
        mkl.MKL_Set_Interface_Layer(0)
        mkl.MKL_Set_Threading_Layer(0)
        # Its threads are left to spin between calls, as they do by default: put to sleep at once
        # (KMP_BLOCKTIME=0), 60 small products in a row took 1.2 to 1.5 times as long on two cores.
        if not _threads_are_set():
            mkl.MKL_Set_Num_Threads(num_cores())
        return rt
    raise OSError("the Python package 'mkl' is not installed, or not whole")


def _mkl_candidates() -> Iterator[Path]:
    import site

    for prefix in (sys.prefix, site.getuserbase() if site.ENABLE_USER_SITE else sys.prefix):
        yield from sorted(Path(prefix, "lib").glob("libmkl_rt.so*"), reverse=True)
    from importlib.metadata import PackageNotFoundError, files

    try:
        listed = files("mkl") or []
    except PackageNotFoundError:
        return
    for file in listed:
        if file.name.startswith("libmkl_rt.so"):
            yield Path(os.path.normpath(str(file.locate())))


def _openmp_of(rt: Path) -> Path | None:
    openmp = rt.parent / "libiomp5.so"
    return openmp if openmp.exists() else None


def _load_openblas() -> Path:
    for path in _openblas_candidates():
        try:
            library = ctypes.CDLL(path, ctypes.RTLD_LOCAL)
            library.openblas_get_config.restype = ctypes.c_char_p
            config = library.openblas_get_config() or b""
            if b"USE64BITINT" in config or not hasattr(library, "cblas_sgemm"):
                continue  # MLX passes 32-bit sizes
        except (OSError, AttributeError):
            continue
        library = ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
        if not _threads_are_set():
            library.openblas_set_num_threads(num_cores())
        return _in_front() or Path(path)
    raise OSError("no OpenBLAS was found")


def _openblas_candidates() -> Iterator[str]:
    import glob

    for pattern in (f"{sys.prefix}/lib/libopenblas.so*", *_OPENBLAS):
        yield from sorted(glob.glob(pattern))
    from ctypes.util import find_library  # asks ldconfig, and gcc: slow, so last

    if (name := find_library("openblas")) is not None:
        yield name


def _threads_are_set() -> bool:
    return any(os.environ.get(name) for name in _THREAD_VARIABLES)


def _describe(path: Path) -> Blas:
    """What is known of the library at `path`, which is loaded."""
    library = ctypes.CDLL(str(path))
    if hasattr(library, "MKL_Get_Max_Threads"):
        buffer = ctypes.create_string_buffer(256)
        library.mkl_get_version_string(buffer, len(buffer))
        release = buffer.value.decode(errors="replace").partition("Version ")[2].partition("-")[0]
        return Blas("mkl", path, release or None, library.MKL_Get_Max_Threads())
    if hasattr(library, "openblas_get_config"):
        library.openblas_get_config.restype = ctypes.c_char_p
        words = (library.openblas_get_config() or b"").decode(errors="replace").split()
        version = words[1] if len(words) > 1 else None
        return Blas("openblas", path, version, library.openblas_get_num_threads())
    if path.resolve().parent.name.startswith("mlx"):
        return Blas("mlx", path, threads=1, notice=_notice())
    return Blas(path.name, path)


def _notice() -> str:
    return (
        "MLX's own BLAS serves: one core, about a quarter of the speed, and no gain from "
        f"drafting. {_remedy()}"
    )


def _remedy() -> str:
    if os.uname().machine == "x86_64":
        return "Run `python -m pip install mkl`, or install your system's OpenBLAS."
    return "Install your system's OpenBLAS (Debian, Ubuntu: `apt install libopenblas0-pthread`)."

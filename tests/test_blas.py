"""Which BLAS serves MLX on Linux, and that what is said of it is so."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mtplx.blas import num_cores, preload
from mtplx.errors import UsageError

ROOT = Path(__file__).parents[1]
CONFTESTS = sorted(ROOT.glob("tests/*/conftest.py"))
linux = pytest.mark.skipif(sys.platform != "linux", reason="MLX on macOS has Accelerate")


def run(code: str, *arguments: str, **variables: str) -> list[dict[str, object]]:
    """Run `code` in a process of its own; gives the records it showed."""
    start = (
        "import dataclasses, json, sys\nfrom mtplx.blas import preload, serving\n"
        "def show(blas): print(json.dumps(dataclasses.asdict(blas), default=str))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", start + code, *arguments],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env={**os.environ, **variables},
    )
    return [json.loads(line) for line in result.stdout.splitlines()]


def has_mkl() -> bool:
    return bool(list(Path(sys.prefix, "lib").glob("libmkl_rt.so*")))


needs_mkl = pytest.mark.skipif(not has_mkl(), reason="the package mkl is not installed")


def test_an_unknown_blas_is_a_usage_error() -> None:
    """A slip in the name is answered with the names there are."""
    with pytest.raises(UsageError, match=r"'atlas'.*auto, mkl, openblas, mlx"):
        preload("atlas")


@linux
def test_mlx_with_its_own_blas_says_so_and_what_to_do() -> None:
    """The slow case is confirmed from libmlx's table and comes with one line of notice."""
    loaded, served = run("show(preload('mlx')); show(serving())")
    assert loaded == served
    assert (served["name"], served["confirmed"]) == ("mlx", True)
    assert "install" in str(served["notice"])
    assert "\n" not in str(served["notice"])


@linux
def test_a_choice_of_mlx_stands() -> None:
    """What asks for the default later cannot put another BLAS in front."""
    assert [b["name"] for b in run("show(preload('mlx')); show(preload()); show(serving())")] == [
        "mlx"
    ] * 3


@linux
@needs_mkl
@pytest.mark.parametrize("choice", ["auto", "mkl"])
def test_mkl_really_serves_mlx(choice: str) -> None:
    """After the preload, the address libmlx calls lies in MKL."""
    loaded, served = run("show(preload(sys.argv[1])); show(serving())", choice)
    assert (loaded["name"], loaded["confirmed"]) == ("mkl", False)
    assert (served["name"], served["confirmed"]) == ("mkl", True)
    assert served["notice"] is None
    assert str(served["version"])[0].isdigit()


@linux
@needs_mkl
def test_a_preload_that_comes_too_late_does_not_claim_to_serve() -> None:
    """With MLX imported first, MLX's own BLAS serves, whatever is loaded afterwards."""
    code = """
import ctypes, mlx.core
from pathlib import Path
show(preload())
rt = next(Path(sys.prefix, "lib").glob("libmkl_rt.so*"))
ctypes.CDLL(str(rt), ctypes.RTLD_GLOBAL)
show(serving())
"""
    assert [(b["name"], b["confirmed"]) for b in run(code)] == [("mlx", True)] * 2


@linux
@needs_mkl
def test_other_programs_settings_do_not_reach_mlx() -> None:
    """MKL's 64-bit integers or single thread, set for another program, are not taken over."""
    code = """
import ctypes
blas = preload("mkl")
mkl = ctypes.CDLL(str(blas.path))
# Once it is at work, MKL answers a change of layer with the one that it keeps.
print(json.dumps({"interface": mkl.MKL_Set_Interface_Layer(1)}))
print(json.dumps({"threading": mkl.MKL_Set_Threading_Layer(1)}))
"""
    kept = run(code, MKL_INTERFACE_LAYER="ILP64", MKL_THREADING_LAYER="SEQUENTIAL")
    assert kept == [{"interface": 0}, {"threading": 0}]


@linux
@needs_mkl
def test_a_number_of_threads_the_user_set_is_kept() -> None:
    """OMP_NUM_THREADS is not overruled."""
    (blas,) = run("show(preload('mkl'))", OMP_NUM_THREADS="1")
    assert blas["threads"] == 1


@linux
@needs_mkl
def test_half_an_mkl_is_passed_over(tmp_path: Path) -> None:
    """Without its core library MKL would end the process; it is not loaded at all."""
    (tmp_path / "lib").mkdir()
    for name in ("libmkl_rt.so*", "libiomp5.so"):
        for file in Path(sys.prefix, "lib").glob(name):
            (tmp_path / "lib" / file.name).symlink_to(file)
    code = """
import importlib.metadata, site
def missing(name): raise importlib.metadata.PackageNotFoundError(name)
importlib.metadata.files, sys.prefix, site.ENABLE_USER_SITE = missing, sys.argv[1], False
from mtplx.errors import UsageError
try:
    preload("mkl")
except UsageError as error:
    print(json.dumps({"error": str(error)}))
"""
    (answer,) = run(code, str(tmp_path))
    assert "'mkl' cannot be loaded" in str(answer["error"])


@linux
def test_openblas_serves_where_it_is_installed() -> None:
    """A system's OpenBLAS is found, loaded and confirmed."""
    code = """
from mtplx.errors import UsageError
try:
    preload("openblas")
except UsageError:
    sys.exit()
show(serving())
"""
    served = run(code)
    if not served:
        pytest.skip("no OpenBLAS on this system")
    assert (served[0]["name"], served[0]["confirmed"]) == ("openblas", True)


@linux
def test_threads_are_no_more_than_the_process_may_use() -> None:
    """A process bound to one core is told one."""
    cores = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(cores)})
        assert num_cores() == 1
    finally:
        os.sched_setaffinity(0, cores)
    assert 1 <= num_cores() <= len(cores)


@pytest.mark.parametrize("path", CONFTESTS, ids=lambda path: path.parent.name)
def test_no_conftest_brings_mlx_in(path: Path) -> None:
    """One of a folder that is named to pytest is read before the suite has chosen the BLAS."""
    code = f"import sys, tests.{path.parent.name}.conftest; sys.exit('mlx.core' in sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr or "it imports MLX"

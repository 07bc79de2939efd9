"""Published checkpoints that several files of tests store in other layouts."""

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.families.layouts import Original


@pytest.fixture(scope="session")
def dense(tmp_path_factory: pytest.TempPathFactory) -> "Original":
    """Qwen 3.5."""
    from tests.families.layouts import original  # imports MLX, which a conftest must not do yet
    from tests.families.qwen import QWEN3_5

    return original(QWEN3_5, tmp_path_factory.mktemp("dense"))


@pytest.fixture(scope="session")
def experts(tmp_path_factory: pytest.TempPathFactory) -> "Original":
    """Qwen 3.5 with experts."""
    from tests.families.layouts import original
    from tests.families.qwen import QWEN3_5_MOE

    return original(QWEN3_5_MOE, tmp_path_factory.mktemp("experts"))


@pytest.fixture(scope="session")
def previous(tmp_path_factory: pytest.TempPathFactory) -> "Original":
    """Qwen3-Next."""
    from tests.families.layouts import original
    from tests.families.qwen import QWEN3_NEXT

    return original(QWEN3_NEXT, tmp_path_factory.mktemp("next"))

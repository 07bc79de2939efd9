from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a few hundred kilobytes with a chat template."""
    from tests.tiny_gguf import write_model  # imports MLX, which a conftest must not do yet

    return write_model(tmp_path_factory.mktemp("model") / "tiny.gguf")

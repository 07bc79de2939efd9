"""Where the emulator runs. Nothing here imports MLX."""

import sys

import pytest

needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="the emulator needs Linux")

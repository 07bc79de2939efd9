"""The emulator runs on Linux; a Mac has the real thing."""

import sys

collect_ignore_glob = [] if sys.platform == "linux" else ["test_*.py"]

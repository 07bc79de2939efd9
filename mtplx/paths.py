"""Where this user's files go. Looking one of these up creates nothing."""

import os
from pathlib import Path

from mtplx.errors import FileAccessError

_APP = "mtplx"


def cache_dir() -> Path:
    """What can be fetched or computed again: models."""
    import platformdirs

    return platformdirs.user_cache_path(_APP, appauthor=False)


def config_dir() -> Path:
    """What the user chose: settings and tuned profiles."""
    import platformdirs

    return platformdirs.user_config_path(_APP, appauthor=False)


def data_dir() -> Path:
    """What cannot be had again: trained heads and saved conversations."""
    import platformdirs

    return platformdirs.user_data_path(_APP, appauthor=False)


def ensure_dir(path: Path) -> Path:
    """The folder `path`, created with its parents where missing and open for writing.

    Raises FileAccessError where it cannot be created or written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = "something else has that name" if path.exists() else error.strerror
        raise FileAccessError(
            f"Cannot create the folder {path}: {reason}. Change its rights, or point "
            "XDG_CACHE_HOME, XDG_CONFIG_HOME or XDG_DATA_HOME elsewhere."
        ) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise FileAccessError(f"Cannot write in the folder {path}: no right to. Change its rights.")
    return path

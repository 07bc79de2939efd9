"""Where this user's files go. Looking one of these up creates nothing.

Each raises FileAccessError for a user who has no home folder and has not said where else.
"""

import os
from pathlib import Path

from mtplx.errors import FileAccessError

_APP = "mtplx"


def cache_dir() -> Path:
    """What can be fetched or computed again: models."""
    return _place("user_cache_path", "XDG_CACHE_HOME")


def config_dir() -> Path:
    """What the user chose: settings and tuned profiles."""
    return _place("user_config_path", "XDG_CONFIG_HOME")


def data_dir() -> Path:
    """What cannot be had again: trained heads and saved conversations."""
    return _place("user_data_path", "XDG_DATA_HOME")


def _place(kind: str, variable: str) -> Path:
    import platformdirs

    try:
        path: Path = getattr(platformdirs, kind)(_APP, appauthor=False)
    except RuntimeError:
        path = Path("~")
    # Older versions leave "~" as it is, which would become a folder of that name right here.
    if not path.is_absolute():
        raise FileAccessError(
            f"This user has no home folder, so there is no place for {_APP}'s files. "
            f"Set HOME, or {variable} to a folder."
        )
    return path


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

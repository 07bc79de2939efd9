"""The user's folders and the default model in them, as `mtplx doctor` sees them."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from mtplx.cli.checks import Finding
from mtplx.errors import MtplxError

MIN_FREE_BYTES = 250_000_000  # the default model and, for a moment, the wheel it comes in


def folder_findings() -> list[Finding]:
    """Cache, configuration and data: where, how large, and whether they can be written."""
    from mtplx.paths import cache_dir, config_dir, data_dir

    places = {"cache": cache_dir, "config": config_dir, "data": data_dir}
    return [*(_folder(subject, find) for subject, find in places.items()), *_settings_findings()]


def _settings_findings() -> list[Finding]:
    """Whether the settings file can be understood, where there is one."""
    from mtplx.config import read_config

    try:
        config = read_config()
    except MtplxError as error:
        return [Finding("settings", str(error), "Mend it, or move it away.", broken=True)]
    if config.path is None or not config.path.is_file():
        return []
    return [Finding("settings", str(config.path))]


def profile_findings() -> list[Finding]:
    """The tuned profiles, and which of them can be used on this machine. Imports MLX."""
    from mtplx.loading.tuned import machine_key
    from mtplx.profile import differences, profiles_dir
    from mtplx.profile_file import read_profile

    try:
        files = sorted(profiles_dir().glob("*.toml"))
    except (MtplxError, OSError):  # told with the folders
        return []
    if not files:
        return [Finding("profiles", "none; `mtplx tune` measures how deep to draft here")]
    findings = []
    for path in files:
        try:
            profile = read_profile(path)
        except MtplxError as error:
            remedy = f"Remove it: mtplx profile forget {path.stem}"
            findings.append(Finding("profile", str(error), remedy))
            continue
        changes = differences(profile.key, machine_key())
        standing = f"is not used here: {'; '.join(changes)}" if changes else "fits this machine"
        findings.append(Finding("profile", f"{profile.model} of {profile.date} {standing}"))
    return findings


def model_findings() -> list[Finding]:
    """Whether the default model is here and whole, or there is room to fetch it."""
    from mtplx.loading.catalogue import SMOLLM2
    from mtplx.loading.fetch import is_cached, verify
    from mtplx.paths import cache_dir

    try:
        path = cache_dir() / "models" / SMOLLM2.file_name
    except MtplxError:  # told with the folders
        return []
    if is_cached():
        try:
            whole = verify(path)
        except MtplxError as error:
            return [Finding("model", str(error), "Change its rights.", broken=True)]
        if not whole:
            return [Finding("model", f"{path} is damaged", f"Remove it: rm '{path}'", broken=True)]
        return [Finding("model", f"{SMOLLM2.alias} is here and whole ({path})")]
    size = f"{SMOLLM2.num_bytes / 1e6:.0f} MB"
    absent = Finding("model", f"{SMOLLM2.alias} is not here yet; the first run fetches {size}")
    free = shutil.disk_usage(_existing(path)).free
    if free < MIN_FREE_BYTES:
        text = f"{free / 1e6:.0f} MB free in {path.parent}"
        return [absent, Finding("disk", text, "Free 250 MB for the default model.", broken=True)]
    return [absent]


def disk_finding() -> Finding | None:
    """How much room is left where models go."""
    from mtplx.paths import cache_dir

    try:
        place = _existing(cache_dir())
    except MtplxError:
        return None
    return Finding("disk", f"{shutil.disk_usage(place).free / 1e9:,.1f} GB free in {place}")


def _folder(subject: str, find: Callable[[], Path]) -> Finding:
    try:
        path = find()
    except MtplxError as error:
        return Finding(subject, str(error), "Set HOME to a folder of your own.")
    place = _existing(path)
    if not place.is_dir():
        return Finding(subject, f"{place} is not a folder", f"Move {place} away.", broken=True)
    if not os.access(place, os.R_OK | os.W_OK | os.X_OK):
        remedy = f"Change its rights: chmod u+rwx '{place}'"
        return Finding(subject, f"{path}: no right to write in {place}", remedy, broken=True)
    if place != path:
        return Finding(subject, f"{path} (not there yet)")
    return Finding(subject, f"{path}, {_size(path) / 1e6:,.1f} MB")


def _existing(path: Path) -> Path:
    """The path, or the nearest parent that is there."""
    while not os.path.lexists(path):
        path = path.parent
    return path


def _size(folder: Path) -> int:
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size
            except OSError:
                continue
    return total

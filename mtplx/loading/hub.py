"""Checkpoints from the Hugging Face hub, what is on disk first."""

import fnmatch
from pathlib import Path, PurePosixPath

from mtplx.errors import DownloadError, ModelNotFoundError, MtplxError
from mtplx.files import STORAGE_ERRORS, access_error
from mtplx.loading.gguf_known import part_names
from mtplx.loading.hub_cache import find_cached, hub_cache_dir
from mtplx.loading.hub_download import Download, HubFile
from mtplx.loading.progress import Progress, silent

# A safetensors checkpoint: weights, configuration, tokenizer and chat template. No code.
_PATTERNS = ("*.safetensors", "*.json", "*.jinja", "*.model", "*.tiktoken", "*.txt")
_TIMEOUT_S = 15
_NETWORK = ("huggingface_hub", "httpx", "requests", "urllib3")  # the client, over the years


def hub_files(
    repo: str,
    file: str | None = None,
    *,
    revision: str | None = None,
    cache: Path | None = None,
    endpoint: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """The folder of a safetensors checkpoint, or the GGUF file, of a hub repository.

    file: a GGUF file in it; needed where the repository has several and no safetensors.
    revision: a commit, branch or tag; by default what is on disk, or else the newest.
    cache, endpoint: the hub client's own where None.
    What is on disk is found without any network call. Raises as `download`.
    """
    found = find_cached(repo, file, revision, cache or hub_cache_dir())
    if found is not None:
        return found
    return download(
        repo, file, revision=revision, cache=cache, endpoint=endpoint, progress=progress
    )


def download(
    repo: str,
    file: str | None = None,
    *,
    revision: str | None = None,
    cache: Path | None = None,
    endpoint: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """Bring a checkpoint's files into the cache, or those that are missing, and check every byte.

    Arguments are those of `hub_files`. Safe to run in several processes at once and to kill at any
    moment. Raises ModelNotFoundError, DownloadError and FileAccessError.
    """
    cache = cache or hub_cache_dir()
    try:
        commit, listed = _listing(repo, revision, endpoint)
        chosen = _chosen(repo, listed, file)
        Download(repo, commit, cache, endpoint, progress or silent).run(chosen, revision or "main")
    except MtplxError:
        raise
    except Exception as error:  # the hub's client lets its HTTP library's own errors through
        raise _explained(repo, error) from error
    found = find_cached(repo, file, commit, cache)
    if found is None:
        raise ModelNotFoundError(
            f"{repo} on the Hugging Face hub is not whole: it lacks a tokenizer.json or a part of "
            "its weights. Choose another conversion of the model."
        )
    return found


def _listing(repo: str, revision: str | None, endpoint: str | None) -> tuple[str, list[HubFile]]:
    """The commit and its files. One question without retries: who is offline is told so at once."""
    from huggingface_hub import HfApi

    info = HfApi(endpoint=endpoint).model_info(
        repo, revision=revision, files_metadata=True, timeout=_TIMEOUT_S
    )
    files = []
    for sibling in info.siblings or []:
        etag = sibling.lfs.sha256 if sibling.lfs is not None else sibling.blob_id
        parts = PurePosixPath(sibling.rfilename).parts
        if etag is not None and ".." not in parts and not sibling.rfilename.startswith("/"):
            files.append(HubFile(sibling.rfilename, sibling.size or 0, etag))
    if info.sha is None or (info.siblings and not files):
        raise DownloadError(f"{repo}: the hub lists no hashes, so nothing could be checked.")
    return info.sha, files


def _chosen(repo: str, listed: list[HubFile], file: str | None) -> list[HubFile]:
    """What is needed of a repository, weights last: where they are whole, so is the rest."""
    names = [entry.name for entry in listed]
    ggufs = [entry for entry in listed if entry.name.endswith(".gguf")]
    if file is not None:
        return _gguf(repo, listed, file)
    top = [entry for entry in listed if "/" not in entry.name]
    weights = [entry for entry in top if entry.name.endswith(".safetensors")]
    if "config.json" in names and weights:
        # Some repositories hold their weights a second time, under another name.
        named = [entry for entry in weights if entry.name.startswith("model")] or weights
        rest = [entry for entry in top if _matches(entry.name) and entry not in weights]
        return [*rest, *named]
    models = list(dict.fromkeys(part_names(entry.name)[0] for entry in ggufs))
    if len(models) == 1:
        return _gguf(repo, listed, models[0])
    if models:
        shown = ", ".join(f"{repo}/{name}" for name in models[:12])
        raise ModelNotFoundError(f"{repo} holds {len(models)} GGUF models. Choose one: {shown}")
    raise ModelNotFoundError(
        f"{repo} on the Hugging Face hub holds neither safetensors with config.json nor GGUF files."
    )


def _gguf(repo: str, listed: list[HubFile], file: str) -> list[HubFile]:
    """A file, and all others where it is one of several that are a model together."""
    by_name = {entry.name: entry for entry in listed}
    if file not in by_name:
        there = ", ".join(name for name in by_name if name.endswith(".gguf")) or "none"
        raise ModelNotFoundError(f"{repo} has no such file as {file}; GGUF files: {there}.")
    parts = part_names(file)
    if missing := [name for name in parts if name not in by_name]:
        raise ModelNotFoundError(
            f"{repo} has {file}, one of {len(parts)} files that are a model together, and not "
            f"{', '.join(missing[:3])}. Choose another conversion of the model."
        )
    return [by_name[name] for name in parts]


def _matches(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in _PATTERNS)


def _explained(repo: str, error: Exception) -> MtplxError:
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if isinstance(error, OfflineModeIsEnabled):
        return DownloadError(
            f"There is no file or folder {repo!r} here, and HF_HUB_OFFLINE keeps off the Hugging "
            "Face hub. Unset it, or give the path of a model on disk."
        )
    if isinstance(error, HFValidationError):
        return ModelNotFoundError(f"{repo!r} cannot be a Hugging Face id: {error}")
    if isinstance(error, OSError) and (error.errno in STORAGE_ERRORS or error.filename):
        return access_error("use", Path(error.filename or repo), error)
    if isinstance(error, GatedRepoError):
        return DownloadError(
            f"{repo} asks for its licence to be accepted: do so at https://huggingface.co/{repo}, "
            "then run `hf auth login`."
        )
    if isinstance(error, RevisionNotFoundError):
        return ModelNotFoundError(f"{repo} on the Hugging Face hub has no such revision.")
    if isinstance(error, RepositoryNotFoundError):
        return ModelNotFoundError(
            f"There is no file or folder {repo!r} here, and no such model on the Hugging Face hub "
            "(or it is private: run `hf auth login`)."
        )
    if "Consistency check failed" in str(error):
        return DownloadError(
            f"The Hugging Face hub broke off in the middle of {repo}. Run this again: it goes on "
            "from there."
        )
    if not isinstance(error, OSError) and not type(error).__module__.startswith(_NETWORK):
        raise error  # a fault of ours
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    reason = f"answered {status}" if status else f"cannot be reached ({type(error).__name__})"
    return DownloadError(
        f"There is no file or folder {repo!r} here, and the Hugging Face hub {reason}. Connect to "
        "the internet and try again, or give the path of a model on disk."
    )

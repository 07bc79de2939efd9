"""Checkpoints from the Hugging Face hub, what is on disk first."""

import json
from pathlib import Path

from mtplx.errors import DownloadError, ModelNotFoundError, MtplxError
from mtplx.files import STORAGE_ERRORS, access_error

# A safetensors checkpoint: weights, configuration, tokenizer and chat template. No code.
_PATTERNS = ["*.safetensors", "*.json", "*.jinja", "*.model", "*.tiktoken", "*.txt"]
_TIMEOUT_S = 15


def hub_files(
    repo: str,
    file: str | None = None,
    *,
    cache: Path | None = None,
    endpoint: str | None = None,
) -> Path:
    """The folder of a safetensors checkpoint, or the GGUF file, of a hub repository.

    file: a GGUF file in it; needed where the repository has several and no safetensors.
    cache, endpoint: the hub client's own where None.
    What a previous call brought is found without any network call, and completed if it was cut
    short. Raises ModelNotFoundError, DownloadError and FileAccessError.
    """
    found = _on_disk(repo, file, cache)
    if found is not None:
        return found
    try:
        return _download(repo, file, cache, endpoint)
    except MtplxError:
        raise
    except Exception as error:  # the hub's client lets its HTTP library's own errors through
        raise _explained(repo, error) from error


def _on_disk(repo: str, file: str | None, cache: Path | None) -> Path | None:
    from huggingface_hub import hf_hub_download, snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        if file is not None:
            return Path(hf_hub_download(repo, file, cache_dir=cache, local_files_only=True))
        folder = Path(
            snapshot_download(
                repo, cache_dir=cache, local_files_only=True, allow_patterns=_PATTERNS
            )
        )
    except LocalEntryNotFoundError:
        return None
    except HFValidationError as error:
        raise ModelNotFoundError(f"{repo!r} cannot be a Hugging Face id: {error}") from error
    if (folder / "config.json").is_file():
        return folder if _is_whole(folder) else None
    ggufs = list(folder.glob("*.gguf"))
    return ggufs[0] if len(ggufs) == 1 else None


def _is_whole(folder: Path) -> bool:
    """Whether all weight files are there; older clients call half a snapshot found."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return any(folder.glob("*.safetensors"))
    try:
        shards = set(json.loads(index.read_text())["weight_map"].values())
    except (ValueError, LookupError, AttributeError):
        return False
    return all((folder / shard).is_file() for shard in shards)


def _download(repo: str, file: str | None, cache: Path | None, endpoint: str | None) -> Path:
    from huggingface_hub import HfApi, snapshot_download

    hub = HfApi(endpoint=endpoint)
    # One question without retries: who is offline is told so at once.
    siblings = hub.model_info(repo, timeout=_TIMEOUT_S).siblings or []
    names = [sibling.rfilename for sibling in siblings]
    if file is not None:
        if file not in names:
            there = ", ".join(name for name in names if name.endswith(".gguf")) or "none"
            raise ModelNotFoundError(f"{repo} has no such file as {file}; GGUF files: {there}.")
        return Path(hub.hf_hub_download(repo, file, cache_dir=cache))
    if "config.json" in names and any(name.endswith(".safetensors") for name in names):
        return Path(
            snapshot_download(repo, cache_dir=cache, endpoint=endpoint, allow_patterns=_PATTERNS)
        )
    ggufs = [name for name in names if name.endswith(".gguf")]
    if len(ggufs) == 1:
        return Path(hub.hf_hub_download(repo, ggufs[0], cache_dir=cache))
    if ggufs:
        shown = ", ".join(f"{repo}/{name}" for name in ggufs[:12])
        raise ModelNotFoundError(f"{repo} holds {len(ggufs)} GGUF files. Choose one: {shown}")
    raise ModelNotFoundError(
        f"{repo} on the Hugging Face hub holds neither safetensors with config.json nor GGUF files."
    )


def _explained(repo: str, error: Exception) -> MtplxError:
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        RepositoryNotFoundError,
    )

    if isinstance(error, OSError) and error.errno in STORAGE_ERRORS:
        return access_error("store the files of", Path(repo), error)
    if isinstance(error, GatedRepoError):
        return DownloadError(
            f"{repo} asks for its licence to be accepted: do so at https://huggingface.co/{repo}, "
            "then run `hf auth login`."
        )
    if isinstance(error, RepositoryNotFoundError):
        return ModelNotFoundError(
            f"There is no file or folder {repo!r} here, and no such model on the Hugging Face hub "
            "(or it is private: run `hf auth login`)."
        )
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    reason = f"answered {status}" if status else f"cannot be reached ({type(error).__name__})"
    return DownloadError(
        f"There is no file or folder {repo!r} here, and the Hugging Face hub {reason}. Connect to "
        "the internet and try again, or give the path of a model on disk."
    )

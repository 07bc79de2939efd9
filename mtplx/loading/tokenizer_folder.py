"""The tokenizer in a checkpoint folder: tokenizer.json and the configurations beside it."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from mtplx.errors import CheckpointError, FileAccessError
from mtplx.loading.tokenizer import Tokenizer, TokenRoles
from mtplx.loading.vocabulary import Spelling, turn_end_ids

if TYPE_CHECKING:
    import tokenizers

Config = Mapping[str, object]


def tokenizer_from_folder(path: Path) -> Tokenizer:
    """The tokenizer of a checkpoint folder.

    Stop ids are the union of what tokenizer_config.json, config.json and generation_config.json
    say; files often disagree, and each of them is right about its own.
    Raises CheckpointError, naming the file, where one is missing or cannot be understood, and
    FileAccessError where it cannot be read.
    """
    settings = _json_object(path / "tokenizer_config.json")
    backend = _backend(path)
    _register_listed_tokens(backend, settings, path)
    spelling = _spelling(backend, path)
    return Tokenizer(
        backend,
        spelling=spelling,
        roles=_roles(backend, settings, path, spelling),
        chat_template=_chat_template(path, settings),
    )


def _roles(
    backend: "tokenizers.Tokenizer", settings: Config, path: Path, spelling: Spelling
) -> TokenRoles:
    configs = [_json_object(path / name) for name in ("config.json", "generation_config.json")]
    added = backend.get_added_tokens_decoder()
    special = {token.content: id_ for id_, token in added.items() if token.special}
    bos_id = _named_id(backend, settings, "bos_token")
    if not settings:
        bos_id = next(_ids(configs, "bos_token_id"), None)
    eos_id = _named_id(backend, settings, "eos_token")
    configured = list(_ids(configs, "eos_token_id"))
    stop_ids = {*configured, *turn_end_ids(special), *([] if eos_id is None else [eos_id])}
    return TokenRoles(
        stop_ids=frozenset(stop_ids),
        bos_id=bos_id,
        eos_id=eos_id if eos_id is not None else next(iter(configured), None),
        unknown_id=_unknown_id(backend, settings, spelling),
        add_bos=_adds_bos(backend, settings, bos_id),
    )


def _backend(path: Path) -> "tokenizers.Tokenizer":
    import tokenizers

    file = path / "tokenizer.json"
    text = _text(file)
    if text is None:
        raise CheckpointError(
            f"{path} has no tokenizer.json. Fetch the checkpoint again with all of its files, or "
            "save one with transformers: AutoTokenizer.from_pretrained(…).save_pretrained(…)."
        )
    try:
        backend = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the backend raises no narrower type
        raise CheckpointError(
            f"{file} is not a tokenizer that can be read: {error}. Fetch it again."
        ) from error
    # Left in the file by training; a prompt must be neither cut nor padded.
    backend.no_truncation()
    backend.no_padding()
    return backend


def _register_listed_tokens(backend: "tokenizers.Tokenizer", settings: Config, path: Path) -> None:
    """Make what only tokenizer_config.json says of added tokens known to the backend."""
    from tokenizers import AddedToken

    listed = settings.get("added_tokens_decoder")
    entries = listed.items() if isinstance(listed, dict) else ()
    wanted = {
        int(id_): entry
        for id_, entry in entries
        if id_.isdecimal() and isinstance(entry, dict) and isinstance(entry.get("content"), str)
    }
    known = backend.get_added_tokens_decoder()
    for id_, entry in sorted(wanted.items()):
        special = bool(entry.get("special"))
        if id_ in known and (known[id_].special or not special):
            continue
        flags = {name: bool(entry.get(name)) for name in ("lstrip", "rstrip", "single_word")}
        token = AddedToken(entry["content"], special=special, normalized=False, **flags)
        backend.add_tokens([token])
        if backend.token_to_id(token.content) != id_:
            raise CheckpointError(
                f"{path / 'tokenizer_config.json'} gives {token.content!r} the id {id_}, and "
                f"tokenizer.json the id {backend.token_to_id(token.content)}. Fetch both again."
            )


def _spelling(backend: "tokenizers.Tokenizer", path: Path) -> Spelling:
    rules = repr(backend.decoder) + repr(backend.pre_tokenizer)
    if "ByteLevel" in rules:
        return Spelling.BYTE_LEVEL
    if any(sign in rules for sign in ("ByteFallback", "Metaspace", "\u2581")):
        return Spelling.SENTENCEPIECE
    raise CheckpointError(
        f"{path / 'tokenizer.json'} is neither byte-level nor SentencePiece, so its tokens cannot "
        "be turned into text. Models for generating text use one of the two."
    )


def _adds_bos(backend: "tokenizers.Tokenizer", settings: Config, bos_id: int | None) -> bool:
    """Whether prompts start with BOS: the flag, or else what the post-processor does."""
    flag = settings.get("add_bos_token")
    if isinstance(flag, bool):
        return flag and bos_id is not None
    return bos_id is not None and bos_id in backend.encode("a", add_special_tokens=True).ids[:1]


def _unknown_id(
    backend: "tokenizers.Tokenizer", settings: Config, spelling: Spelling
) -> int | None:
    """The id of characters the vocabulary lacks; a byte-level one lacks none."""
    if spelling is Spelling.BYTE_LEVEL:
        return None
    unknown = getattr(backend.model, "unk_token", None)
    if isinstance(unknown, str):
        return backend.token_to_id(unknown)
    return _named_id(backend, settings, "unk_token")


def _named_id(backend: "tokenizers.Tokenizer", settings: Config, name: str) -> int | None:
    value = settings.get(name)
    if isinstance(value, dict):
        value = value.get("content")
    return backend.token_to_id(value) if isinstance(value, str) else None


def _ids(configs: list[Config], name: str) -> Iterator[int]:
    """Token ids under a name that holds one or a list, also inside a multimodal text_config."""
    for config in configs:
        inner = config.get("text_config")
        for holder in (config, inner if isinstance(inner, dict) else {}):
            value = holder.get(name)
            for id_ in value if isinstance(value, list) else [value]:
                if isinstance(id_, int) and not isinstance(id_, bool) and id_ >= 0:
                    yield id_


def _chat_template(path: Path, settings: Config) -> str | None:
    """The template file where there is one, else the configuration's, else None."""
    if (text := _text(path / "chat_template.jinja")) is not None:
        return text
    for source in (settings, _json_object(path / "chat_template.json")):
        template = source.get("chat_template")
        if isinstance(template, str):
            return template
        if isinstance(template, list):
            named = {
                entry.get("name"): entry["template"]
                for entry in template
                if isinstance(entry, dict) and isinstance(entry.get("template"), str)
            }
            return named.get("default", next(iter(named.values()), None))
    return None


def _json_object(path: Path) -> Config:
    """A JSON file's object; empty where there is no such file."""
    text = _text(path)
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise CheckpointError(f"{path} is not JSON: {error}. Fetch it again.") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} holds no JSON object. Fetch it again.")
    return value


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise FileAccessError(f"{path} cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not UTF-8 text. Fetch it again.") from error

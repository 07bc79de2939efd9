"""The tokenizer that a GGUF file's metadata describes.

Keys and token types: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, "Tokenizer".
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from mtplx.errors import CheckpointError
from mtplx.loading.pretokenizers import split_rule
from mtplx.loading.tokenizer import Tokenizer, TokenRoles
from mtplx.loading.vocabulary import METASPACE, Spelling, merges_from_scores, turn_end_ids

if TYPE_CHECKING:
    import tokenizers

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED = 1, 2, 3, 4
_NO_TOKEN = 2**32 - 1  # how some converters write "none" in an unsigned field
_PREFIX = "tokenizer.ggml."


def tokenizer_from_gguf(fields: Mapping[str, object]) -> Tokenizer:
    """The tokenizer described by a GGUF file's metadata, key -> plain Python value.

    Raises CheckpointError, naming the key, where one is missing, of the wrong kind or unknown.
    """
    pieces = _strings(fields, "tokens")
    types = _numbers(fields, "token_type", len(pieces)) or [_NORMAL] * len(pieces)
    model = fields.get(_PREFIX + "model")
    if model == "gpt2":
        backend, spelling = _byte_level(fields, pieces), Spelling.BYTE_LEVEL
        adds_bos = split_rule(fields.get(_PREFIX + "pre")).adds_bos
    elif model == "llama":
        backend, spelling = _sentencepiece(fields, pieces, types), Spelling.SENTENCEPIECE
        adds_bos = True
    else:
        raise CheckpointError(
            f"The GGUF file's tokenizer.ggml.model is {model!r}; 'gpt2' and 'llama' can be read. "
            "Use the model's original folder, with its tokenizer.json, instead."
        )
    roles = _roles(fields, pieces, types, adds_bos)
    _add_tokens(backend, pieces, types, roles)
    template = fields.get("tokenizer.chat_template")
    return Tokenizer(
        backend,
        spelling=spelling,
        roles=roles,
        chat_template=template if isinstance(template, str) else None,
    )


def _byte_level(fields: Mapping[str, object], pieces: Sequence[str]) -> "tokenizers.Tokenizer":
    import tokenizers
    from tokenizers import models, normalizers, pre_tokenizers

    rule = split_rule(fields.get(_PREFIX + "pre"))
    # A piece may itself start with a space, so the separator is looked for behind the first one.
    merges = [
        (merge[:cut], merge[cut + 1 :])
        for merge in _strings(fields, "merges")
        if (cut := merge.find(" ", 1)) > 0
    ]
    vocabulary = {piece: id_ for id_, piece in enumerate(pieces)}
    try:
        model = models.BPE(vocabulary, merges, ignore_merges=rule.whole_words)
    except Exception as error:  # the backend raises no narrower type
        raise CheckpointError(
            f"tokenizer.ggml.merges does not fit tokenizer.ggml.tokens: {error}. "
            "The file is damaged or was converted wrongly; fetch it again."
        ) from error
    backend = tokenizers.Tokenizer(model)
    if rule.composes:
        backend.normalizer = normalizers.NFC()
    splits = [
        pre_tokenizers.Split(tokenizers.Regex(pattern), behavior="isolated")
        for pattern in rule.patterns
    ]
    to_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([*splits, to_bytes])
    return backend


def _sentencepiece(
    fields: Mapping[str, object], pieces: Sequence[str], types: Sequence[int]
) -> "tokenizers.Tokenizer":
    import tokenizers
    from tokenizers import models, normalizers

    scores = _numbers(fields, "scores", len(pieces))
    if not scores:
        raise CheckpointError(
            "The GGUF file has a SentencePiece vocabulary without tokenizer.ggml.scores, so "
            "how its pieces merge is not known. Fetch it again or use the original folder."
        )
    ordinary = {piece: id_ for id_, piece in enumerate(pieces) if types[id_] == _NORMAL}
    unknown = [piece for piece, kind in zip(pieces, types, strict=True) if kind == _UNKNOWN]
    model = models.BPE(
        {piece: id_ for id_, piece in enumerate(pieces)},
        merges_from_scores(ordinary, scores),
        unk_token=unknown[0] if unknown else None,
        fuse_unk=True,
        byte_fallback=True,
    )
    backend = tokenizers.Tokenizer(model)
    spaces: list[normalizers.Normalizer] = [normalizers.Replace(" ", METASPACE)]
    if fields.get(_PREFIX + "add_space_prefix", True):
        spaces.insert(0, normalizers.Prepend(METASPACE))
    backend.normalizer = normalizers.Sequence(spaces)
    return backend


def _roles(
    fields: Mapping[str, object], pieces: Sequence[str], types: Sequence[int], adds_bos: bool
) -> TokenRoles:
    special = {piece: id_ for id_, piece in enumerate(pieces) if types[id_] == _CONTROL}
    eos_id = _token_id(fields, "eos", len(pieces))
    ends = (_token_id(fields, name, len(pieces)) for name in ("eos", "eot", "eom"))
    flag = fields.get(_PREFIX + "add_bos_token")
    return TokenRoles(
        stop_ids=frozenset(id_ for id_ in ends if id_ is not None) | turn_end_ids(special),
        bos_id=_token_id(fields, "bos", len(pieces)),
        eos_id=eos_id,
        unknown_id=types.index(_UNKNOWN) if _UNKNOWN in types else None,
        add_bos=bool(flag) if flag is not None else adds_bos,
    )


def _add_tokens(
    backend: "tokenizers.Tokenizer",
    pieces: Sequence[str],
    types: Sequence[int],
    roles: TokenRoles,
) -> None:
    """Register the tokens that merging does not make: control, unknown and user-defined ones."""
    from tokenizers import AddedToken

    # Files that call their end-of-turn token ordinary exist; its role shows that it is not text.
    steering = {roles.bos_id, *roles.stop_ids}
    backend.add_tokens(
        [
            AddedToken(piece, special=kind != _USER_DEFINED or id_ in steering, normalized=False)
            for id_, (piece, kind) in enumerate(zip(pieces, types, strict=True))
            if piece and (kind in (_UNKNOWN, _CONTROL, _USER_DEFINED) or id_ in steering)
        ]
    )


def _strings(fields: Mapping[str, object], name: str) -> list[str]:
    value = fields.get(_PREFIX + name)
    if not isinstance(value, list) or not value or not isinstance(value[0], str):
        raise CheckpointError(
            f"The GGUF file has no list of strings under tokenizer.ggml.{name}, so it has no "
            "tokenizer that can be read. Convert the model again, or use its original folder."
        )
    return value


def _numbers(fields: Mapping[str, object], name: str, length: int) -> list[int]:
    value = fields.get(_PREFIX + name)
    if value is None:
        return []
    if not isinstance(value, list) or len(value) != length:
        raise CheckpointError(
            f"tokenizer.ggml.{name} does not have one number for each of the {length:,} tokens. "
            "The file is damaged or was converted wrongly; fetch it again."
        )
    return value


def _token_id(fields: Mapping[str, object], name: str, num_tokens: int) -> int | None:
    value = fields.get(f"{_PREFIX}{name}_token_id")
    if value is None or value in (_NO_TOKEN, -1):
        return None
    if not isinstance(value, int) or not 0 <= value < num_tokens:
        raise CheckpointError(
            f"tokenizer.ggml.{name}_token_id is {value!r}, which is none of the file's "
            f"{num_tokens:,} tokens. Fetch the file again."
        )
    return value

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from mtplx.errors import CheckpointError
from mtplx.loading.tokenizer_folder import tokenizer_from_folder

ALPHABET = sorted(pre_tokenizers.ByteLevel.alphabet())
# Numbered as published files number them: behind the model's own vocabulary, kinds in turn.
ADDED = {"<s>": True, "<think>": False, "</s>": True, "<end>": True, "<call>": False}
IDS = {name: len(ALPHABET) + place for place, name in enumerate(ADDED)}


def byte_level() -> tokenizers.Tokenizer:
    vocabulary = {character: id_ for id_, character in enumerate(ALPHABET)}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    for name, special in ADDED.items():
        backend.add_tokens([AddedToken(name, special=special, normalized=False)])
    return backend


def folder(path: Path, backend: tokenizers.Tokenizer | None = None, **files: Any) -> Path:
    """A checkpoint folder; each keyword is the object in the JSON file of that name."""
    (backend or byte_level()).save(str(path / "tokenizer.json"))
    for name, value in files.items():
        (path / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")
    return path


def test_a_reply_stops_on_the_end_tokens_of_every_file(tmp_path: Path) -> None:
    """EOS of the tokenizer, the model's and the generation's configuration all count."""
    path = folder(
        tmp_path,
        tokenizer_config={"eos_token": {"content": "</s>"}},
        config={"eos_token_id": 10, "text_config": {"eos_token_id": [11]}},
        generation_config={"eos_token_id": [12, 13]},
    )
    tokenizer = tokenizer_from_folder(path)
    assert tokenizer.stop_ids == {IDS["</s>"], 10, 11, 12, 13}
    assert tokenizer.decode([*sorted(tokenizer.stop_ids), 40]) == tokenizer.decode([40])


def test_added_tokens_keep_their_ids_in_typed_text(tmp_path: Path) -> None:
    """Leaving special tokens out of typed text does not renumber the added ones behind them."""
    tokenizer = tokenizer_from_folder(folder(tmp_path))
    token_ids = tokenizer.encode("<s><call><think>", parse_special=False)
    assert token_ids[-2:] == [IDS["<call>"], IDS["<think>"]]
    assert tokenizer.special_ids.isdisjoint(token_ids)
    assert tokenizer.decode(token_ids) == "<s><call><think>"


@pytest.mark.parametrize("processed", [False, True])
@pytest.mark.parametrize("flag", [None, False, True])
def test_bos_follows_the_flag_and_else_the_post_processor(
    tmp_path: Path, processed: bool, flag: bool | None
) -> None:
    """BOS is added if the flag says so, or without a flag if the tokenizer's own rules do."""
    backend = byte_level()
    if processed:
        backend.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", IDS["<s>"])]
        )
    settings = {"bos_token": "<s>"} | ({} if flag is None else {"add_bos_token": flag})
    tokenizer = tokenizer_from_folder(folder(tmp_path, backend, tokenizer_config=settings))
    expected = processed if flag is None else flag
    assert tokenizer.encode_prompt("ab")[0] == (IDS["<s>"] if expected else ALPHABET.index("a"))
    assert IDS["<s>"] not in tokenizer.encode("ab", parse_special=True)


def test_truncation_and_padding_left_in_the_file_do_nothing(tmp_path: Path) -> None:
    """A long prompt is not cut and a short one not padded, whatever training left behind."""
    backend = byte_level()
    backend.enable_truncation(4)
    backend.enable_padding(length=16)
    tokenizer = tokenizer_from_folder(folder(tmp_path, backend))
    for parse_special in (False, True):
        assert len(tokenizer.encode("abcdefgh", parse_special=parse_special)) == 8
        assert len(tokenizer.encode("ab", parse_special=parse_special)) == 2


def test_tokens_listed_only_in_the_configuration_are_known(tmp_path: Path) -> None:
    """What tokenizer.json lacks or calls ordinary is special if the configuration says so."""
    new_id = len(ALPHABET) + len(ADDED)
    listed = {
        str(new_id): {"content": "<new>", "special": True},
        str(IDS["<call>"]): {"content": "<call>", "special": True},
    }
    tokenizer = tokenizer_from_folder(
        folder(tmp_path, tokenizer_config={"added_tokens_decoder": listed})
    )
    assert {new_id, IDS["<call>"]} <= tokenizer.special_ids
    assert tokenizer.encode("<call><new>", parse_special=True) == [IDS["<call>"], new_id]


def test_a_listed_token_with_another_id_is_an_error(tmp_path: Path) -> None:
    """Two files that number a token differently are not guessed about."""
    listed = {"9999": {"content": "<new>", "special": True}}
    path = folder(tmp_path, tokenizer_config={"added_tokens_decoder": listed})
    with pytest.raises(CheckpointError, match="'<new>' the id 9999"):
        tokenizer_from_folder(path)


@pytest.mark.parametrize(
    ("in_config", "in_file", "expected"),
    [
        (None, None, None),
        ("from config", None, "from config"),
        ("from config", "from file", "from file"),
        ([{"name": "tools", "template": "t"}, {"name": "default", "template": "d"}], None, "d"),
        ([{"name": "tools", "template": "t"}], None, "t"),
    ],
)
def test_the_chat_template_is_found_where_it_is(
    tmp_path: Path, in_config: object, in_file: str | None, expected: str | None
) -> None:
    """A template file wins over the configuration, and of named templates the default one."""
    path = folder(tmp_path, tokenizer_config={"chat_template": in_config})
    if in_file is not None:
        (path / "chat_template.jinja").write_text(in_file, encoding="utf-8")
    assert tokenizer_from_folder(path).chat_template == expected


def test_text_behind_a_special_token_gets_no_space_of_its_own(tmp_path: Path) -> None:
    """Cut at its special tokens, a Metaspace prompt has just the spaces that the whole has."""
    pieces = ["<unk>", "\u2581", "a", "b", "\u2581a"]
    model = models.BPE(
        {piece: id_ for id_, piece in enumerate(pieces)}, [("\u2581", "a")], unk_token="<unk>"
    )
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.decoder = decoders.Metaspace()
    backend.add_tokens([AddedToken("<s>", special=True, normalized=False)])
    tokenizer = tokenizer_from_folder(folder(tmp_path, backend))
    for text in ("a<s>a", "<s>a b<s> a", "aa<s>"):
        whole = tokenizer.encode(text, parse_special=True)
        assert tokenizer.encode_pieces(tokenizer.split_special(text)) == whole
    assert tokenizer.token(tokenizer.encode("a", parse_special=False)[0]) == "\u2581a"


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("tokenizer.json", None, "no tokenizer.json"),
        ("tokenizer.json", b"{}", "not a tokenizer"),
        ("tokenizer.json", b"\xff\xfe", "not UTF-8"),
        ("tokenizer_config.json", b"{", "tokenizer_config.json is not JSON"),
        ("config.json", b"[1]", "config.json holds no JSON object"),
    ],
)
def test_files_that_are_missing_or_damaged_are_named(
    tmp_path: Path, name: str, content: bytes | None, expected: str
) -> None:
    """Each unreadable file is a CheckpointError that names it."""
    path = folder(tmp_path)
    (path / name).unlink(missing_ok=True)
    if content is not None:
        (path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match=expected):
        tokenizer_from_folder(path)


def test_a_vocabulary_of_words_is_refused(tmp_path: Path) -> None:
    """A tokenizer whose tokens cannot be turned back into bytes is an error, not wrong text."""
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0, "<unk>": 1}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    with pytest.raises(CheckpointError, match="neither byte-level nor SentencePiece"):
        tokenizer_from_folder(folder(tmp_path, backend))

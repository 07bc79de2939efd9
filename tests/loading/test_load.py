"""From a name to a model that is ready to decode, with a head if there is one for it."""

import json
from pathlib import Path

import mlx.core as mx
import pytest

from mtplx.errors import (
    CheckpointError,
    FileAccessError,
    HeadError,
    MemoryLimitError,
    ModelNotFoundError,
    MtplxError,
    UnsupportedTensorError,
)
from mtplx.loading import find_head as finding
from mtplx.loading.describe import describe
from mtplx.loading.find_head import find_head, trained_head_path
from mtplx.loading.fingerprint import fingerprint
from mtplx.loading.load import LoadedModel, load
from mtplx.models.drafter import HeadDrafter
from mtplx.models.llama import LlamaTarget
from mtplx.models.llama_like import llama_dims_of
from mtplx.models.mlx_lm_target import MlxLmTarget
from tests.greedy import same_greedy
from tests.tiny import GREEDY, finish, plain, start
from tests.tiny_folder import write_folder
from tests.tiny_gguf import write_head, write_model


@pytest.fixture(autouse=True)
def _no_heads_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finding, "data_dir", lambda: tmp_path / "data")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "tiny.gguf")


def says(loaded: LoadedModel, depth: int) -> list[int]:
    prompt = loaded.tokenizer.encode_prompt("Hello, hello")
    return finish(start(loaded.new_state(prompt), prompt, depth=depth))


def test_a_file_without_a_head_decodes_plainly_and_says_why(model: Path) -> None:
    """One line with what would make a head; nothing drafts."""
    loaded = load(model)
    assert isinstance(loaded.target, LlamaTarget)
    assert (loaded.name, loaded.path, loaded.can_draft) == (str(model), model, False)
    assert loaded.load_s > 0
    assert loaded.no_head_reason is not None
    assert f"mtplx train-head {model}" in loaded.no_head_reason
    assert "\n" not in loaded.no_head_reason
    assert loaded.new_state().drafter is None
    assert len(says(loaded, 2)) == GREEDY.max_tokens


def test_a_head_beside_the_model_is_found(model: Path) -> None:
    """STEM.mtp.safetensors; it drafts, and changes nothing that is said."""
    without = load(model)
    head = write_head(model.with_name("tiny.mtp.safetensors"), model)
    loaded = load(model)
    assert loaded.can_draft
    assert loaded.no_head_reason is None
    assert loaded.head is not None
    assert loaded.head.path == head
    assert isinstance(loaded.new_state().drafter, HeadDrafter)
    assert says(loaded, 2) == says(without, 0)


def test_heads_are_looked_for_in_one_order(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the model, then trained here, then in the package if it is this trunk's."""
    trunk = fingerprint(model)
    beside, trained = model.with_name("tiny.mtp.safetensors"), trained_head_path(trunk)
    packaged = model.with_name("packaged.safetensors")
    trained.parent.mkdir(parents=True)
    for path in (beside, trained, packaged):
        write_head(path, model)
    monkeypatch.setattr(finding, "PACKAGED", str(packaged))
    for path in (beside, trained, packaged):
        assert find_head(model, trunk) == path
        path.unlink()
    assert find_head(model, trunk) is None
    write_head(packaged, model)
    assert find_head(model, "0" * 32) is None


def test_a_head_can_be_given(model: Path, tmp_path: Path) -> None:
    """It goes before any that would be found."""
    write_head(model.with_name("tiny.mtp.safetensors"), model)
    given = write_head(tmp_path / "other.safetensors", model)
    for way in (given, str(given)):
        loaded = load(str(model), head=way)
        assert loaded.head is not None
        assert loaded.head.path == given


def test_a_given_head_of_another_trunk_is_refused(model: Path, tmp_path: Path) -> None:
    """It would draft nonsense: both trunks are named, and what to do."""
    other = write_model(tmp_path / "other.gguf", template=None)
    head = write_head(tmp_path / "given.safetensors", other)
    with pytest.raises(HeadError) as caught:
        load(model, head=head)
    message = str(caught.value)
    assert all(trunk in message for trunk in (fingerprint(model), fingerprint(other)))
    assert "train-head" in message


@pytest.mark.parametrize("kind", ["foreign", "empty", "text", "cut short"])
def test_a_head_that_was_found_and_is_broken_costs_the_drafting_alone(
    kind: str, model: Path, tmp_path: Path
) -> None:
    """The model decodes plainly, and one line says which file is wrong, and how."""
    path = model.with_name("tiny.mtp.safetensors")
    trunk = write_model(tmp_path / "other.gguf", template=None) if kind == "foreign" else model
    whole = write_head(path, trunk).read_bytes()
    path.write_bytes({"empty": b"", "text": b"no head", "cut short": whole[:-9]}.get(kind, whole))
    loaded = load(model)
    assert not loaded.can_draft
    assert loaded.no_head_reason is not None
    assert str(path) in loaded.no_head_reason
    assert "\n" not in loaded.no_head_reason
    assert len(says(loaded, 2)) == GREEDY.max_tokens


def test_a_broken_head_gives_way_to_one_that_fits(model: Path) -> None:
    """A stale file beside the model does not hide the head that was trained since."""
    model.with_name("tiny.mtp.safetensors").write_bytes(b"stale")
    trained = trained_head_path(fingerprint(model))
    trained.parent.mkdir(parents=True)
    write_head(trained, model)
    loaded = load(model)
    assert loaded.head is not None
    assert loaded.head.path == trained


def test_a_user_without_a_home_loads_a_model(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Heads trained here are looked for only where there is a place for them."""

    def nowhere() -> Path:
        raise FileAccessError("no home folder")

    monkeypatch.setattr(finding, "data_dir", nowhere)
    assert not load(model).can_draft


@pytest.mark.parametrize("content", [None, b"", b"no head"])
def test_a_given_head_that_is_none_is_an_error(
    content: bytes | None, model: Path, tmp_path: Path
) -> None:
    """A file that is missing or something else does not silently decode plainly."""
    path = tmp_path / "head.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(HeadError, match=r"head\.safetensors"):
        load(model, head=path)


def test_tokens_of_the_prompt_can_be_drafted(model: Path) -> None:
    """A state's shortlist has the prompt's tokens, and the model's own stays as it is."""
    write_head(model.with_name("tiny.mtp.safetensors"), model)
    loaded = load(model)
    assert loaded.shortlist is not None
    short = loaded.shortlist.ids[:4]
    narrow = LoadedModel(
        **{name: getattr(loaded, name) for name in LoadedModel.__slots__}
        | {"shortlist": type(loaded.shortlist)(short, loaded.shortlist.matrix.take(mx.arange(4)))}
    )
    drafter = narrow.new_state([200, 1, 150]).drafter
    assert isinstance(drafter, HeadDrafter)
    assert drafter.shortlist is not None
    assert drafter.shortlist.ids.tolist() == [0, 1, 2, 3, 150, 200]
    assert narrow.shortlist is not None
    assert narrow.shortlist.ids.shape == (4,)
    prompt = [200, 1, 150]
    state = narrow.new_state(prompt)
    assert finish(start(state, prompt, depth=3)) == plain(loaded.target, prompt)


def test_states_of_one_model_share_its_weights_and_nothing_else(model: Path) -> None:
    """Each has caches of its own."""
    loaded = load(model)
    one, other = loaded.new_state(), loaded.new_state()
    finish(start(one, [5, 6, 7]))
    assert other.num_bytes == 0
    assert other.token_ids == []
    assert one.target is other.target


def test_a_folder_is_read_through_mlx_lm(tmp_path: Path) -> None:
    """It decodes plainly, and one line says what would make a head; another's is an error."""
    folder = write_folder(tmp_path / "folder")
    loaded = load(folder)
    assert not loaded.can_draft
    assert loaded.no_head_reason is not None
    assert f"mtplx train-head {folder}" in loaded.no_head_reason
    assert len(says(loaded, 2)) == GREEDY.max_tokens
    head = write_head(tmp_path / "head.safetensors", write_model(tmp_path / "tiny.gguf"))
    with pytest.raises(HeadError, match="made for another model"):
        load(folder, head=head)


@pytest.mark.parametrize("place", ["beside", "trained", "given"])
def test_a_folder_drafts_with_a_head_that_was_trained_for_it(place: str, tmp_path: Path) -> None:
    """mlx-lm runs the trunk, and the text is that of plain decoding."""
    folder = write_folder(tmp_path / "folder")
    plainly = load(folder)
    dims = llama_dims_of(plainly.target)
    assert dims is not None
    path = {
        "beside": tmp_path / "folder.mtp.safetensors",
        "trained": trained_head_path(fingerprint(folder)),
        "given": tmp_path / "head.safetensors",
    }[place]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_head(path, folder, dims)
    loaded = load(folder, head=path if place == "given" else None)
    assert isinstance(loaded.target, MlxLmTarget)
    assert loaded.head is not None
    assert loaded.head.path == path
    assert says(loaded, 2) == says(plainly, 0)


def test_a_head_of_its_own_file_is_for_llama_type_trunks(tmp_path: Path) -> None:
    """Layers with a window are none that it was trained with."""
    folder = write_folder(tmp_path / "folder")
    config = json.loads((folder / "config.json").read_bytes())
    windowed = {"layer_types": ["full_attention", "sliding_attention"], "sliding_window": 8}
    (folder / "config.json").write_text(json.dumps(config | windowed))
    loaded = load(folder)
    assert loaded.no_head_reason is not None
    assert "architecture" in loaded.no_head_reason
    head = write_head(tmp_path / "head.safetensors", folder)
    with pytest.raises(HeadError, match="for a llama-type trunk, not"):
        load(folder, head=head)


@pytest.mark.parametrize("kind", ["gguf", "folder"])
def test_memory_decides_how_much_context_there_is(kind: str, model: Path, tmp_path: Path) -> None:
    """What is left beside the model is what the context may take, and one line says so."""
    path = model if kind == "gguf" else write_folder(tmp_path / "folder")
    description = describe(path)
    need, length = description.need, description.context_length
    assert need.cache_bytes_per_token is not None
    assert length is not None
    for fitting in (length, length - 1):
        memory = need.held_bytes + fitting * need.cache_bytes_per_token
        loaded = load(path, memory_bytes=memory)
        assert loaded.target.context_length == fitting
        assert (loaded.context_note is None) == (fitting == length)
    assert loaded.context_note is not None
    assert f"limited to {length - 1:,} of {length:,} tokens" in loaded.context_note


@pytest.mark.parametrize(
    ("share", "told"), [(0.5, "before any text"), (1.0, r"holds \d+ tokens of text")]
)
def test_a_model_that_does_not_fit_is_refused_before_it_is_read(
    share: float, told: str, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what it takes and what there is; no weight is touched."""
    monkeypatch.setattr("mtplx.loading.gguf_llama.llama_target", None)
    need = describe(model).need
    enough = int(need.held_bytes * share) + 100 * (need.cache_bytes_per_token or 0)
    with pytest.raises(MemoryLimitError, match=rf"tiny\.gguf takes .*{told}.*smaller model"):
        load(model, memory_bytes=enough)


def damaged(kind: str, folder: Path) -> Path:
    path = folder / "damaged.gguf"
    if kind == "cut short":
        whole = write_model(path).read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
    elif kind == "odd type":
        write_model(path, odd_type=True)
    elif kind == "empty folder":
        path.mkdir()
    elif kind == "text":
        path.write_text("hello")
    return path


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("missing", ModelNotFoundError),
        ("text", ModelNotFoundError),
        ("empty folder", ModelNotFoundError),
        ("cut short", CheckpointError),
        ("odd type", UnsupportedTensorError),
    ],
)
def test_what_is_no_model_is_one_clear_error(
    kind: str, error: type[MtplxError], tmp_path: Path
) -> None:
    """With its path, or the tensor that is at fault, on one line."""
    with pytest.raises(error, match=r"damaged\.gguf|blk\.0\.attn_q") as caught:
        load(damaged(kind, tmp_path))
    assert "\n" not in str(caught.value)


def test_a_file_without_rights_is_one_clear_error(model: Path) -> None:
    """Where the system says no, so do we, with the path."""
    model.chmod(0)
    try:
        model.read_bytes()
    except PermissionError:
        with pytest.raises(FileAccessError, match=r"tiny\.gguf"):
            load(model)
    else:
        pytest.skip("this user may read everything")


def test_what_a_checkpoint_asks_for_and_does_not_get_is_told(tmp_path: Path) -> None:
    """A packed attention cache is not kept without a word."""
    folder = write_folder(tmp_path / "m")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"kv_cache_scheme": {"num_bits": 8}}
    (folder / "config.json").write_text(json.dumps(config))
    assert "packed attention cache" in str(load(folder).context_note)


@pytest.mark.slow
def test_the_default_model_comes_with_a_head(smollm2_path: Path) -> None:
    """The packaged head is for this very file, fits its trunk, and drafts."""
    loaded = load(smollm2_path)
    assert loaded.no_head_reason is None
    assert isinstance(loaded.target, LlamaTarget)
    assert loaded.target.dims.num_layers == 30
    assert loaded.target.lm_head is loaded.target.embedding
    prompt = loaded.tokenizer.encode_prompt("The capital of France is")
    texts = [finish(start(loaded.new_state(prompt), prompt, depth=depth)) for depth in (0, 2)]
    assert "Paris" in loaded.tokenizer.decode(texts[0])
    assert same_greedy(loaded.target, prompt, *texts)

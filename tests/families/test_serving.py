"""A checkpoint with a head of its own, from its folder to its text."""

from pathlib import Path

import mlx.core as mx
import pytest

from mtplx import state as decode_state
from mtplx.bench.run import Plan, run
from mtplx.draft_options import DraftOptions
from mtplx.errors import HeadError
from mtplx.generate import generate
from mtplx.loading import load as loading
from mtplx.loading.load import LoadedModel, load
from mtplx.models.drafter import HeadDrafter
from mtplx.params import SamplingParams
from mtplx.state import DecodeState
from tests.families.proofs import assert_same_state
from tests.families.qwen import write_served

GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
HEAD_ALONE = DraftOptions(stop=0, lookup=False)
TEXT = "What is drafted is checked."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_served(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def model(folder: Path) -> LoadedModel:
    return load(folder)


def test_a_folder_with_a_head_drafts(model: LoadedModel, folder: Path) -> None:
    """Loading finds it, and the text is plain decoding's."""
    assert model.can_draft
    assert model.no_head_reason is None
    assert model.head is not None
    assert model.head.path == folder / "model.safetensors"
    drafted = generate(model, TEXT, GREEDY, depth=3, draft=HEAD_ALONE)
    assert sum(drafted.stats.drafted) > 0
    assert drafted.text == generate(model, TEXT, GREEDY, depth=0).text


def test_a_head_file_for_such_a_folder_is_refused(folder: Path) -> None:
    """Its own head is the one that fits."""
    with pytest.raises(HeadError, match="llama-type trunk"):
        load(folder, head=folder / "model.safetensors")


def test_a_large_vocabulary_is_drafted_from_in_part(
    model: LoadedModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From its frequent tokens, those that end a reply and those of the prompt; the text stays."""
    some = mx.array([*range(60), 256], dtype=mx.int32)
    monkeypatch.setattr(loading, "frequent_ids", lambda *_: some)
    narrow = load(folder)
    assert narrow.shortlist is not None
    drafter = narrow.new_state([70, 71, 3]).drafter
    assert isinstance(drafter, HeadDrafter)
    assert drafter.support is not None
    assert drafter.support.tolist() == [*range(60), 256, 70, 71]
    drafted = generate(narrow, TEXT, GREEDY, depth=3, draft=HEAD_ALONE)
    assert sum(drafted.stats.drafted) > 0
    assert drafted.text == generate(model, TEXT, GREEDY, depth=0).text


@pytest.mark.parametrize("num_rows", [1, 5, 100])
def test_a_prompt_read_in_parts_primes_the_head_with_all_of_it(
    num_rows: int, model: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In passes of a few rows as in a single one."""
    token_ids = model.tokenizer.encode_prompt(TEXT)
    whole = fresh(model, token_ids)
    monkeypatch.setattr(decode_state, "PREFILL_ROWS", num_rows)
    parts = fresh(model, token_ids)
    assert drafter_of(parts).num_rows == drafter_of(whole).num_rows == len(token_ids)
    assert_same_state(drafter_of(parts).cache, drafter_of(whole).cache)


@pytest.mark.parametrize("num_plain", [1, 5, 80])
def test_drafting_that_pauses_leaves_no_hole(model: LoadedModel, num_plain: int) -> None:
    """Rows that were decoded plainly are in the head's state when it drafts again, also where a
    whole request went without."""
    prompt = model.tokenizer.encode_prompt(TEXT)
    state = model.new_state()
    state.begin(prompt, drafting=True)
    plain = [(7 * i) % 256 for i in range(num_plain)]
    tokens = [*prompt[-1:], *plain]
    for token_id in tokens:
        state.forward(mx.array([token_id]))
        state.keep([token_id])
    rows = state.draft_input(9)
    assert state.drafter is not None
    if rows is not None:
        state.drafter.observe(rows)
    assert_same_state(drafter_of(state).cache, drafter_of(fresh(model, state.token_ids)).cache)
    without = model.new_state()
    without.begin(state.token_ids, drafting=False)
    without.begin([*state.token_ids, 9, 0], drafting=True)
    assert_same_state(drafter_of(without).cache, drafter_of(fresh(model, state.token_ids)).cache)


def drafter_of(state: DecodeState) -> HeadDrafter:
    assert isinstance(state.drafter, HeadDrafter)
    return state.drafter


def fresh(model: LoadedModel, token_ids: list[int]) -> DecodeState:
    """A state whose head has seen these tokens and then 9 in a single prefill."""
    state = model.new_state()
    state.begin([*token_ids, 9, 0], drafting=True)
    return state


def test_such_a_folder_is_benchmarked(model: LoadedModel) -> None:
    """Plain decoding, drafting, and mlx-lm's own loop over the same weights."""
    plan = Plan((0, 2), ("chat",), SamplingParams(temperature=0.0, max_tokens=4), 1, 1, True)
    report = run(model, plan, lambda *_: None)
    assert {row.arm for row in report.rows} >= {"off", "mtp"}
    assert report.weight_bytes is not None

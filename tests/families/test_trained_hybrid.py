"""A small Qwen 3.5 hybrid that was really trained: drafts are accepted and rejected as they come.

`tests/assets/tiny-qwen3_5/README.md` says how it was made and what was measured.
"""

from pathlib import Path

import mlx.core as mx
import pytest

from mtplx.draft_options import DraftOptions
from mtplx.generate import generate
from mtplx.loading.load import LoadedModel, load
from mtplx.models.calibrate import Choice, Trial, calibrate
from mtplx.models.drafter import HeadDrafter
from mtplx.models.mlx_lm_target import MlxLmTarget
from mtplx.models.native_head import NativeHead
from mtplx.params import SamplingParams
from mtplx.request import EncodedPrompt
from mtplx.result import Result
from mtplx.state import DecodeState
from tests.families.proofs import assert_same_state
from tests.greedy import same_greedy
from tests.rank import as_float32
from tests.tiny import start

ROOT = Path(__file__).parents[2]
ASSET = ROOT / "tests/assets/tiny-qwen3_5"
UNSEEN = ROOT / "mtplx/rng.py"  # Python source, and in no training data
GREEDY = SamplingParams(temperature=0.0, max_tokens=100)
ONLY_HEAD = DraftOptions(lookup=False, stop=0.0)
LEAST_AGREEMENT = 0.45  # of one drafted token and the trunk on unseen text; measured: 0.56
MOST_BITS_PER_BYTE = 2.8  # measured: 2.4; eight is knowing nothing


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """In float32, so that no other order of sums chooses another token."""
    return load(as_float32(ASSET, tmp_path_factory.mktemp("trained") / "wide"))


@pytest.fixture(scope="module")
def unseen(model: LoadedModel) -> list[int]:
    return list(model.tokenizer.encode(UNSEEN.read_text(), parse_special=False))[:400]


def head_of(model: LoadedModel) -> NativeHead:
    head = model.head.on(model.target) if model.head is not None else None
    assert isinstance(head, NativeHead)
    return head


def written(model: LoadedModel, prompt: list[int], depth: int, params: SamplingParams) -> Result:
    return generate(model, EncodedPrompt(prompt), params, depth=depth, draft=ONLY_HEAD)


def test_it_has_learnt_the_language(model: LoadedModel, unseen: list[int]) -> None:
    """Unseen source costs far fewer bits than bytes have."""
    target = model.target
    hidden = target.forward(mx.array(unseen), target.make_cache())
    logits = target.logits(target.normalise(hidden))[:-1].astype(mx.float32)
    chosen = mx.take_along_axis(logits, mx.array(unseen)[1:, None], axis=-1)[:, 0]
    nats = mx.sum(mx.logsumexp(logits, axis=-1) - chosen).item()
    num_bytes = len(model.tokenizer.decode(unseen).encode())
    assert float(str(nats)) / 0.6931 / num_bytes < MOST_BITS_PER_BYTE


@pytest.fixture(scope="module")
def plain(model: LoadedModel, unseen: list[int]) -> Result:
    return written(model, unseen[:60], 0, GREEDY)


@pytest.mark.slow
@pytest.mark.parametrize("depth", range(1, 6))
def test_greedy_text_is_plain_decodings(
    model: LoadedModel, unseen: list[int], plain: Result, depth: int
) -> None:
    """Over a hundred tokens, in which drafts were accepted and rejected."""
    drafted = written(model, unseen[:60], depth, GREEDY)
    num_drafted, num_accepted = sum(drafted.stats.drafted), sum(drafted.stats.accepted)
    assert 0 < num_accepted < num_drafted
    assert same_greedy(model.target, unseen[:60], drafted.token_ids, plain.token_ids)


@pytest.mark.slow
def test_after_every_round_the_state_is_that_of_a_prefill(
    model: LoadedModel, unseen: list[int]
) -> None:
    """Recurrent and convolution state, keys and values, and those of the head."""
    state, prompt = model.new_state(unseen[:40]), unseen[:40]
    params = SamplingParams(temperature=0.0, max_tokens=40)
    emitted, cut = list[int](), 0
    for emission in start(state, prompt, params, depth=3, draft=ONLY_HEAD):
        emitted += emission.token_ids
        cut += len(emission.token_ids) < 4
        assert_like_a_prefill(model, state, [*prompt, *emitted][:-1])
    assert cut > 0


def assert_like_a_prefill(model: LoadedModel, state: DecodeState, token_ids: list[int]) -> None:
    assert state.token_ids == token_ids
    fresh, drafter = model.new_state(), state.drafter
    fresh.begin([*token_ids, 0], drafting=True)
    assert_same_state(state.cache, fresh.cache)
    assert isinstance(drafter, HeadDrafter)
    behind = model.new_state()
    behind.begin([*token_ids[: drafter.num_rows + 1], 0], drafting=True)
    assert isinstance(behind.drafter, HeadDrafter)
    assert_same_state(drafter.cache, behind.drafter.cache)


@pytest.mark.slow
def test_a_seed_gives_one_text_at_every_depth(model: LoadedModel, unseen: list[int]) -> None:
    """By the coupled law, with tokens drawn at random, accepted and rejected."""
    drawn = SamplingParams(temperature=0.8, law="coupled", seed=7, max_tokens=100)
    found = [written(model, unseen[:60], depth, drawn) for depth in range(5)]
    assert len({result.token_ids for result in found}) == 1
    for result in found[1:]:
        assert 0 < sum(result.stats.accepted) < sum(result.stats.drafted)


@pytest.fixture(scope="module")
def trials(model: LoadedModel, unseen: list[int]) -> list[Trial]:
    return calibrate(head_of(model), [unseen])


@pytest.mark.slow
def test_the_head_foresees_the_trunk(trials: list[Trial]) -> None:
    """On unseen text, at each of three positions, and not always."""
    assert all(LEAST_AGREEMENT < share < 0.95 for share in trials[0].agreement)


@pytest.mark.slow
def test_a_wrong_stage_or_order_foresees_less(trials: list[Trial]) -> None:
    """The hidden state from the wrong side of the norm, the same in recycling, halves swapped."""
    own = trials[0]
    assert own.choice == Choice("after_norm", "after_norm", "embedding_first")
    for trial in trials[1:]:
        assert trial.mean_length < own.mean_length - 0.1, trial.choice


def test_it_is_loaded_with_its_head(model: LoadedModel) -> None:
    """From the layout of the published checkpoints."""
    assert isinstance(model.target, MlxLmTarget)
    assert model.no_head_reason is None
    assert model.can_draft

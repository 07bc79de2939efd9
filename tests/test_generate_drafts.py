"""How drafts are asked for and told of, from a prompt to a result."""

import json
from dataclasses import replace

import pytest

from mtplx import DraftOptions
from mtplx.errors import UsageError
from mtplx.generate import generate, stream
from mtplx.loading.load import LoadedModel, load
from mtplx.params import LAW_NAMES, SamplingParams
from tests.tiny_gguf import write_head, write_model

PROMPT = "one two three one two three one two three one two"
SAMPLED = SamplingParams(temperature=0.8, max_tokens=24, seed=5)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = tmp_path_factory.mktemp("drafts")
    path = write_model(folder / "tiny.gguf")
    return load(path, head=write_head(folder / "head.safetensors", path))


@pytest.mark.parametrize("mode", ["greedy", "sampled", "filtered"])
def test_the_mode_that_served_is_told(model: LoadedModel, mode: str) -> None:
    """In the result and in JSON, with what was drafted and accepted in it."""
    result = generate(model, PROMPT, SAMPLED, depth=2, draft=DraftOptions(mode, lookup=False))
    told = json.loads(json.dumps(result.to_json()))
    assert result.draft_mode == told["draft_mode"] == mode
    assert list(told["drafts"]) == [mode]
    assert told["drafts"][mode]["drafted"] == sum(result.stats.drafted)
    assert told["drafts"][mode]["accepted"] == sum(result.stats.accepted)


def test_plain_decoding_has_no_mode(model: LoadedModel) -> None:
    """Nothing was drafted, so nothing served."""
    told = generate(model, PROMPT, SAMPLED, depth=0).to_json()
    assert (told["draft_mode"], told["drafts"]) == (None, {})


@pytest.mark.parametrize("law", LAW_NAMES)
def test_the_law_is_told(model: LoadedModel, law: str) -> None:
    """The one that was asked for, from a field or from the parameters; block by default."""
    assert generate(model, PROMPT, SAMPLED, law=law).to_json()["law"] == law
    assert generate(model, PROMPT, replace(SAMPLED, law=law)).law == law
    assert generate(model, PROMPT, SAMPLED).law == "block"


def test_a_coupled_seed_gives_one_text(model: LoadedModel) -> None:
    """Drafting off, on, at any depth and from anything, without a head as well."""
    headless = replace(model, head=None, shortlist=None)
    texts = {
        generate(model, PROMPT, SAMPLED, law="coupled", depth=depth, draft=draft).token_ids
        for depth in (0, 1, 4)
        for draft in (DraftOptions(), DraftOptions("greedy"), DraftOptions("lookup"))
    }
    lookup = DraftOptions("lookup")
    texts.add(generate(headless, PROMPT, SAMPLED, law="coupled", depth=3, draft=lookup).token_ids)
    assert len(texts) == 1


def test_repetitions_are_drafted_without_a_head(model: LoadedModel) -> None:
    """At the depth that was asked for or the usual one; other modes need a head and say so."""
    headless = replace(model, head=None, shortlist=None, no_head_reason="it has none.")
    greedy = SamplingParams(temperature=0, max_tokens=16)
    plain = generate(headless, PROMPT, greedy, depth=0, raw=True).token_ids
    for depth in (None, 5):
        draft = DraftOptions("lookup")
        result = generate(headless, PROMPT, greedy, depth=depth, draft=draft, raw=True)
        assert result.token_ids == plain
        assert result.depth == (5 if depth else "auto")
        assert result.draft_mode == "lookup"
    with pytest.raises(UsageError, match=r"it has none\. .*'lookup' needs no head"):
        stream(headless, PROMPT, greedy, depth=2, draft=DraftOptions("greedy"))

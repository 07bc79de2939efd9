"""Flags, the settings for one model, those for all, the model's makers, what is built in."""

import json
from pathlib import Path

import pytest

from mtplx.cli.effective import BUILT_IN, Effective, Value, merged
from mtplx.cli.options import Request
from mtplx.config import Config
from mtplx.errors import SamplingError
from tests.tiny_folder import write_folder
from tests.tiny_gguf import write_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose makers recommend a temperature and top-k."""
    path = write_folder(tmp_path_factory.mktemp("effective") / "model")
    recipe = {"temperature": 0.6, "top_k": 20, "do_sample": True}
    (path / "generation_config.json").write_text(json.dumps(recipe))
    return path


def holds(path: Path | None, config: Config, *given: str, **fields: object) -> Effective:
    """given: names of fields on the command line, besides those with a value here."""
    request = Request(**fields, given=frozenset({*fields, *given}))  # type: ignore[arg-type]
    return merged("m", path, config, request)


def test_each_layer_goes_before_the_next(folder: Path) -> None:
    """One value, taken away from the top: what is below it holds, and is named as its source."""
    every = {"temperature": 0.3}
    config = Config(Path("config.toml"), settings={"temperature": 0.4}, models={"m": every})
    layers = [
        (holds(folder, config, temp=0.2), Value(0.2, "--temp")),
        (holds(folder, config), Value(0.3, "config.toml [models.m]")),
        (
            holds(folder, Config(Path("config.toml"), settings={"temperature": 0.4})),
            Value(0.4, "config.toml"),
        ),
        (holds(folder, Config()), Value(0.6, "generation_config.json")),
        (holds(None, Config()), Value(BUILT_IN["temperature"], "built in")),
    ]
    for effective, expected in layers:
        assert effective.values["temperature"] == expected
        assert effective.params.temperature == expected.value


def test_a_flag_that_says_the_usual_is_still_a_flag(folder: Path) -> None:
    """--temp 0.7 is no less said for being what would hold without any file."""
    usual = Request().temp
    assert holds(folder, Config(), temp=usual).params.temperature == usual
    assert holds(folder, Config()).params.temperature == 0.6


def test_what_a_recipe_leaves_out_is_off(folder: Path) -> None:
    """The built-in top-p would change what the makers tried."""
    effective = holds(folder, Config())
    assert effective.params.top_p == 1.0
    assert effective.values["top_p"].source == "generation_config.json"
    assert holds(None, Config()).params.top_p == BUILT_IN["top_p"]


@pytest.mark.parametrize("kind", ["folder", "file", "unknown"])
def test_a_reply_may_be_as_long_as_the_context(kind: str, folder: Path, tmp_path: Path) -> None:
    """Where nobody says otherwise, and never at temperature 0."""
    path = {"folder": folder, "file": write_model(tmp_path / "m.gguf"), "unknown": None}[kind]
    effective = holds(path, Config())
    assert effective.params.max_tokens == {"folder": 512, "file": 1024, "unknown": 4096}[kind]
    assert effective.params.temperature > 0
    assert holds(path, Config(), max_tokens=7).params.max_tokens == 7
    limited = Config(settings={"max_tokens": 9})
    assert holds(path, limited).params.max_tokens == 9


def test_a_model_is_known_by_every_name_that_leads_to_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An alias, the path, another way of writing the path, and what the alias stands for."""
    monkeypatch.chdir(folder.parent)
    aliases = {"m": str(folder), "other": "owner/name"}
    for name in ("m", str(folder), "./model", "model/../model"):
        config = Config(aliases=aliases, models={name: {"seed": 5}})
        assert holds(folder, config).params.seed == 5
    for name in ("other", "nowhere/at all", "smollm2", ""):
        config = Config(aliases=aliases, models={name: {"seed": 5}})
        assert holds(folder, config).params.seed is None


def test_settings_that_are_no_sampling_fields_have_layers_too(folder: Path) -> None:
    """The system prompt, the head and the depth."""
    config = Config(settings={"system": "all"}, models={"m": {"head": "~/h", "depth": 0}})
    effective = holds(folder, config)
    assert effective.system == "all"
    assert effective.head == Path("~/h").expanduser()
    assert effective.depth(can_draft=True) == 0
    flagged = holds(folder, config, system="said", head=Path("x"), depth=2)
    assert (flagged.system, flagged.head) == ("said", Path("x"))
    assert flagged.depth(can_draft=True) == 2


def test_a_depth_that_is_set_gives_way_where_nothing_can_draft(folder: Path) -> None:
    """A flag does not: whoever types it is told why it cannot be."""
    config = Config(settings={"depth": 3})
    assert holds(folder, config).depth(can_draft=False) is None
    assert holds(folder, config).depth(can_draft=True) == 3
    assert holds(folder, Config(), depth=3).depth(can_draft=False) == 3


def test_what_only_a_request_has_is_kept(folder: Path) -> None:
    """A bias on tokens is no setting, and gets through."""
    assert holds(folder, Config(), logit_bias=["5=-inf"]).params.logit_bias == {5: float("-inf")}
    assert holds(folder, Config(), dry_breaker=["x"]).params.dry_breakers == ("x",)


def test_flags_that_cannot_be_meant_are_refused(folder: Path) -> None:
    """As without any settings."""
    with pytest.raises(SamplingError, match="temperature is -1"):
        holds(folder, Config(), temp=-1.0)

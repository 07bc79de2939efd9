"""What holds for a model: flags, the settings file, the model's own files, what is built in.

In this order, and what is set for one model before what is set for all. Each value keeps where it
came from.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from mtplx.cli.model import find_model, places_of
from mtplx.cli.options import Request
from mtplx.config import MODEL_SETTINGS, TOP_SETTINGS, Config, read_config
from mtplx.errors import MtplxError
from mtplx.loading.progress import Progress
from mtplx.loading.recommended import Recommended, recommended
from mtplx.loading.resolve import Places, expanded, locate
from mtplx.params import SamplingParams

# For a model whose files recommend nothing: livelier than its likeliest words, without the rarest.
BUILT_IN: Mapping[str, object] = {"temperature": 0.7, "top_p": 0.95}
CONTEXT_LENGTH = 4096  # where no file states one
_FLAGS = {
    "temperature": "temp",
    "dry_breakers": "dry_breaker",
}  # flags that are not named as the field they set
_OTHERS = ("system", "depth", "head")  # settings that are no sampling fields


@dataclass(frozen=True, slots=True)
class Value:
    """A value, and who set it, in words."""

    value: object
    source: str


@dataclass(frozen=True, slots=True)
class Effective:
    """Everything that holds for a request.

    values: each setting by name. ignored: what the model's files say and is not followed.
    path: the model's files; None where they are not on this machine.
    """

    params: SamplingParams
    values: Mapping[str, Value]
    ignored: tuple[str, ...]
    path: Path | None

    def depth(self, *, can_draft: bool) -> int | None:
        """Tokens drafted per round, 0 for plain decoding; None for what is expected to be fastest.

        can_draft: whether there is something to draft with. What the settings file wants gives way
        where there is not; a flag does not, so that an error can say why.
        """
        depth = self.values["depth"]
        if not isinstance(depth.value, int) or not (can_draft or depth.source.startswith("--")):
            return None
        return depth.value

    @property
    def system(self) -> str | None:
        """What the model is told beforehand."""
        return self._text("system")

    @property
    def head(self) -> Path | None:
        """The MTP head to draft with, in place of the one that is found."""
        head = self._text("head")
        return None if head is None else Path(head).expanduser()

    def _text(self, name: str) -> str | None:
        value = self.values[name].value
        return None if value is None else str(value)


def effective_settings(model: str, request: Request, progress: Progress | None = None) -> Effective:
    """What holds for a request to `model`, which is fetched if it is not on this machine.

    progress: told of a download; None shows a bar.
    Raises what `find_model`, `read_config` and `Request.params` raise.
    """
    return merged(model, find_model(model, progress), read_config(), request)


def known_settings(model: str) -> Effective:
    """What would hold for `model` without any flag, as far as can be told without fetching it."""
    config = read_config()
    return merged(model, locate(model, places=places_of(config)), config, None)


def merged(model: str, path: Path | None, config: Config, request: Request | None) -> Effective:
    """All layers, the last one first.

    path: the model's files, None for what is not on this machine.
    """
    advice = Recommended("") if path is None else recommended(path)
    given = SamplingParams() if request is None else request.params()
    values = _built_in(advice)
    values |= {name: Value(value, advice.source) for name, value in advice.values.items()}
    file = "the settings file" if config.path is None else config.path.name
    values |= {name: Value(value, file) for name, value in config.settings.items()}
    for name, settings in _sections(model, path, config):
        source = f"{file} [models.{name}]"
        values |= {key: Value(value, source) for key, value in settings.items()}
    values |= _flags(request, given)
    sampling = {name: values[name].value for name in values if name not in _OTHERS}
    params = replace(given, **sampling)  # type: ignore[arg-type]  # checked when they were read
    return Effective(params, values, advice.ignored, path)


def _built_in(advice: Recommended) -> dict[str, Value]:
    """The last resort for every setting there is."""
    plain = SamplingParams()
    values = {
        name: Value(BUILT_IN.get(name, getattr(plain, name)), "built in")
        for name in TOP_SETTINGS
        if hasattr(plain, name)
    }
    values |= {name: Value(None, "built in") for name in _OTHERS}
    room, source = advice.context_length, "all that the context leaves"
    values["max_tokens"] = Value(room or CONTEXT_LENGTH, source)
    return values


def _sections(
    model: str, path: Path | None, config: Config
) -> list[tuple[str, Mapping[str, object]]]:
    """What the file says of this model, by any name that leads to it."""
    places = places_of(config)
    return [
        (name, settings)
        for name, settings in config.models.items()
        if name == model or _leads_to(name, model, path, places)
    ]


def _leads_to(name: str, model: str, path: Path | None, places: Places) -> bool:
    with suppress(MtplxError):  # a name that leads nowhere does not lead here
        if expanded(name, places) == expanded(model, places):
            return True
        found = None if path is None else locate(name, places=places)
        return found is not None and path is not None and found.samefile(path)
    return False


def _flags(request: Request | None, params: SamplingParams) -> dict[str, Value]:
    if request is None:
        return {}
    usual = Request().params()
    values = {}
    for name in MODEL_SETTINGS:
        flag = _FLAGS.get(name, name)
        if name in _OTHERS:
            value: object = getattr(request, name)
        else:
            value = getattr(params, name)
        if flag in request.given:
            values[name] = Value(value, f"--{flag.replace('_', '-')}")
        elif name not in _OTHERS and value != getattr(usual, name):
            values[name] = Value(value, "the command line")
    return values

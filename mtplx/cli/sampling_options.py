"""The options that say how tokens are chosen."""

from dataclasses import dataclass
from typing import Annotated, Any

import typer

from mtplx.errors import SamplingError

OWN = "the model's own"  # what the settings file or the model's makers say comes first


def _option(metavar: str, help: str, **more: Any) -> Any:
    return typer.Option(metavar=metavar, help=help, rich_help_panel="Sampling", **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingOptions:
    """How tokens are chosen, in the words of the command line. The annotations are the options."""

    temp: Annotated[
        float, _option("T", "Temperature; 0 takes the likeliest token.", show_default=OWN)
    ] = 0.7
    top_p: Annotated[
        float,
        _option(
            "P", "Keep the likeliest tokens that hold this mass; 1 keeps all.", show_default=OWN
        ),
    ] = 1.0
    top_k: Annotated[
        int, _option("K", "Keep the K likeliest tokens; 0 keeps all.", show_default=OWN)
    ] = 0
    min_p: Annotated[
        float,
        _option(
            "P", "Keep tokens at least this likely, relative to the likeliest.", show_default=OWN
        ),
    ] = 0.0
    typical_p: Annotated[
        float,
        _option("P", "Keep the tokens nearest to the expected surprise, to this mass; 1 is off."),
    ] = 1.0
    xtc_probability: Annotated[
        float, _option("P", "How often to exclude the top choices; 0 is off.")
    ] = 0.0
    xtc_threshold: Annotated[
        float, _option("P", "Tokens this likely are top choices; the least of them stays.")
    ] = 0.1
    seed: Annotated[
        int | None,
        _option("N", "The same seed gives the same text.", show_default="a new one each time"),
    ] = None
    repetition_penalty: Annotated[
        float, _option("X", "Make seen tokens less likely; 1 is off.", show_default=OWN)
    ] = 1.0
    presence_penalty: Annotated[
        float, _option("X", "Subtract this from the logits of seen tokens; 0 is off.")
    ] = 0.0
    frequency_penalty: Annotated[
        float, _option("X", "Subtract this for each time a token was seen; 0 is off.")
    ] = 0.0
    penalty_window: Annotated[
        int | None, _option("N", "How many of the last tokens count as seen.", show_default="all")
    ] = None
    dry_multiplier: Annotated[
        float,
        _option("X", "DRY: penalise what would go on with an earlier passage; 0 is off."),
    ] = 0.0
    dry_base: Annotated[
        float, _option("X", "What each further token of the passage multiplies that by.")
    ] = 1.75
    dry_allowed_length: Annotated[
        int, _option("N", "Passages shorter than this may be repeated.")
    ] = 2
    dry_window: Annotated[
        int | None, _option("N", "How many of the last tokens are searched.", show_default="all")
    ] = None
    dry_breaker: Annotated[
        list[str] | None,
        _option(
            "TEXT",
            "No passage runs over a token with this text; may be repeated.",
            show_default="line end, colon, quote, star",
        ),
    ] = None
    logit_bias: Annotated[
        list[str] | None,
        _option("ID=X", "Add X to the logit of a token id, -inf forbids it; may be repeated."),
    ] = None
    allow: Annotated[
        list[int] | None,
        _option("ID", "Draw only this token id and others so named.", show_default="all"),
    ] = None

    def sampling(self) -> dict[str, Any]:
        """The fields of SamplingParams. Raises SamplingError for a bias that is none."""
        fields = {
            name: getattr(self, name)
            for name in SamplingOptions.__annotations__
            if name not in ("temp", "logit_bias", "allow", "dry_breaker")
        }
        if self.dry_breaker is not None:
            fields["dry_breakers"] = tuple(self.dry_breaker)
        return {
            **fields,
            "temperature": self.temp,
            "logit_bias": dict(map(_bias, self.logit_bias or ())),
            "allowed_ids": None if self.allow is None else tuple(self.allow),
        }


def _bias(text: str) -> tuple[int, float]:
    token_id, equals, bias = text.partition("=")
    try:
        if equals:
            return int(token_id), float(bias)
    except ValueError:
        pass
    raise SamplingError(f"--logit-bias is {text!r}, but must be ID=NUMBER, such as 198=-inf.")

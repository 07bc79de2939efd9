"""Tokens per second by draft depth as a picture: a panel per class, a line per context."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from mtplx.errors import UsageError
from mtplx.files import write_atomically
from mtplx.profile import Interval, Profile
from mtplx.tuner.plan import spelt
from mtplx.tuner.record import speeds_of
from mtplx.tuner.trial import Cell

_WIDTH, _PANEL_HEIGHT, _TOP, _COLUMNS = 880, 250, 92, 2
_LEFT, _RIGHT, _ABOVE, _BELOW = 52, 20, 34, 44  # of a panel, around its plot
# Told apart also by people who see few colours. The order is the contexts'.
_COLOURS = ("#2a6fb8", "#c8641e", "#3c8d5a", "#8452a8")
_INK, _SOFT, _GRID, _PAPER = "#1f2328", "#59636e", "#e4e7eb", "#ffffff"
_FONT = "system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"


def write_chart(profile: Profile, path: Path) -> None:
    """Draw a profile into a file, as SVG or as PNG.

    Raises UsageError as `drawer` does, and FileAccessError.
    """
    write_atomically(path, drawer(path)(chart_svg(profile)))


def drawer(path: Path) -> Callable[[str], bytes]:
    """What makes a file of this name out of SVG.

    Raises UsageError for a name that is of neither kind, and for PNG without what draws it.
    """
    kind = path.suffix.lower()
    if kind == ".svg":
        return str.encode
    if kind != ".png":
        raise UsageError(f"A chart can be a .svg or a .png file, and {path.name!r} is neither.")
    try:
        import resvg_py
    except ImportError as error:
        raise UsageError(
            "Drawing a .png needs a package that is not installed: `python -m pip install "
            "resvg-py`. A .svg needs none."
        ) from error
    return lambda svg: bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=2.0))


def chart_svg(profile: Profile) -> str:
    """The picture as SVG."""
    speeds = speeds_of(profile)
    kinds = list(dict.fromkeys(cell.kind for cell in speeds))
    contexts = sorted({cell.context for cell in speeds})
    chosen = {Cell(choice.kind, choice.context): choice.depth for choice in profile.choices}
    highest = max(span.high for found in speeds.values() for span in found.values())
    deepest = max(depth for found in speeds.values() for depth in found)
    scale = _Scale(deepest, _nice_above(highest))
    rows = -(-len(kinds) // _COLUMNS)
    height = _TOP + rows * _PANEL_HEIGHT + 8
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" '
        f'viewBox="0 0 {_WIDTH} {height}" font-family="{_FONT}" font-size="12">',
        f'<rect width="{_WIDTH}" height="{height}" fill="{_PAPER}"/>',
        *_heading(profile, contexts),
    ]
    for place, kind in enumerate(kinds):
        x = place % _COLUMNS * (_WIDTH // _COLUMNS)
        y = _TOP + place // _COLUMNS * _PANEL_HEIGHT
        parts.append(f'<g transform="translate({x} {y})">')
        parts += _frame(kind, scale)
        for context, colour in zip(contexts, _COLOURS * len(contexts), strict=False):
            cell = Cell(kind, context)
            if cell in speeds:
                parts += _series(speeds[cell], chosen[cell], colour, scale)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


@dataclass(frozen=True, slots=True)
class _Scale:
    """From depth and speed to a place in a panel."""

    deepest: int
    highest: float

    def x(self, depth: float) -> float:
        inner = _WIDTH // _COLUMNS - _LEFT - _RIGHT
        return _LEFT + 14 + depth / max(self.deepest, 1) * (inner - 28)

    def y(self, speed: float) -> float:
        inner = _PANEL_HEIGHT - _ABOVE - _BELOW
        return _ABOVE + inner * (1 - speed / self.highest)


def _heading(profile: Profile, contexts: Sequence[int]) -> list[str]:
    """Title, what is shown, and a key to the lines."""
    subtitle = (
        f"{profile.key['chip']}, {profile.key['cores']} cores, BLAS {profile.key['blas']}"
        if profile.key["device"] == "cpu"
        else str(profile.key["chip"])
    )
    parts = [
        _text(16, 26, f"Tokens per second by draft depth, {profile.model}", size=16, bold=True),
        _text(16, 45, f"{subtitle}; {profile.date}", colour=_SOFT),
    ]
    x = 16.0
    for context, colour in zip(contexts, _COLOURS * len(contexts), strict=False):
        parts.append(_line((x, 66), (x + 22, 66), colour, 2))
        parts.append(_dot(x + 11, 66, colour, filled=False))
        label = f"{spelt(context)} tokens of context"
        parts.append(_text(x + 28, 70, label))
        x += 46 + 6.6 * len(label)
    parts.append(_dot(x + 5, 66, _INK, filled=True))
    parts.append(_text(x + 18, 70, "chosen; bars are 90 % intervals; dashes are plain decoding"))
    return parts


def _frame(kind: str, scale: _Scale) -> list[str]:
    """A panel without its data."""
    right = _WIDTH // _COLUMNS - _RIGHT
    parts = [_text(_LEFT, 20, kind, size=13, bold=True)]
    for tick in _ticks(scale.highest):
        y = scale.y(tick)
        parts.append(_line((_LEFT, y), (right, y), _GRID, 1))
        parts.append(_text(_LEFT - 8, y + 4, f"{tick:g}", anchor="end", colour=_SOFT))
    bottom = scale.y(0)
    for depth in range(scale.deepest + 1):
        label = "plain" if depth == 0 else str(depth)
        parts.append(_text(scale.x(depth), bottom + 17, label, anchor="middle", colour=_SOFT))
    middle = (_LEFT + right) / 2
    parts.append(_text(middle, bottom + 35, "draft depth", anchor="middle", colour=_SOFT))
    return parts


def _series(speeds: Mapping[int, Interval], chosen: int, colour: str, scale: _Scale) -> list[str]:
    """A context's line with its intervals, behind it the level of plain decoding."""
    points = [(scale.x(depth), scale.y(span.median)) for depth, span in speeds.items()]
    level = points[0][1]
    joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    parts = [
        _line(points[0], (scale.x(scale.deepest), level), colour, 1, dashed=True),
        f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="2"/>',
    ]
    for depth, span in speeds.items():
        x = scale.x(depth)
        parts.append(_line((x, scale.y(span.low)), (x, scale.y(span.high)), colour, 1.5))
    for (depth, span), (x, y) in zip(speeds.items(), points, strict=True):
        parts.append(_dot(x, y, colour, filled=depth == chosen, title=f"{span.median:.1f}"))
    return parts


def _line(
    start: tuple[float, float],
    end: tuple[float, float],
    colour: str,
    width: float,
    *,
    dashed: bool = False,
) -> str:
    dashes = ' stroke-dasharray="3 4"' if dashed else ""
    return (
        f'<line x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}" '
        f'stroke="{colour}" stroke-width="{width:g}"{dashes}/>'
    )


def _dot(x: float, y: float, colour: str, *, filled: bool, title: str = "") -> str:
    fill, radius = (colour, 6.0) if filled else (_PAPER, 3.5)
    told = f"<title>{escape(title)}</title>" if title else ""
    return (
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius:g}" fill="{fill}" stroke="{colour}" '
        f'stroke-width="2">{told}</circle>'
    )


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: int = 12,
    bold: bool = False,
    anchor: str = "start",
    colour: str = _INK,
) -> str:
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" '
        f'text-anchor="{anchor}"{weight}>{escape(text)}</text>'
    )


def _nice_above(value: float) -> float:
    """The end of an axis: the next whole step above a value."""
    step = _step(value)
    return step * (int(value / step) + 1)


def _ticks(highest: float) -> list[float]:
    step = _step(highest * 0.999)
    return [step * i for i in range(round(highest / step) + 1)]


def _step(value: float) -> float:
    """1, 2 or 5 times a power of ten, of which the value holds four to ten."""
    power = 10.0 ** len(str(int(value))) / 100
    return next(power * factor for factor in (1, 2, 5, 10, 20, 50) if value / (power * factor) <= 6)

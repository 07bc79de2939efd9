"""Put a measured profile into docs/tuning.md: its tables, and its chart as docs/tuning.svg.

python -m benchmarks.tuning_page PROFILE.toml
"""

import sys
from pathlib import Path

from mtplx.profile import Profile
from mtplx.profile_file import read_profile
from mtplx.tuner import report
from mtplx.tuner.chart import write_chart

DOCS = Path(__file__).parents[1] / "docs"
BEGIN, END = "<!-- measured -->\n", "<!-- end of measured -->\n"


def section(profile: Profile) -> str:
    """What the page says of this profile."""
    key, at = profile.key, profile.measured
    took_s = at["took_s"]
    assert isinstance(took_s, float)
    lines = [
        f"`{profile.model}` on {profile.date}:",
        f"{key['chip']}, {key['cores']} cores, {key['memory']}, {key['os']}, MLX {key['mlx']},",
        f"BLAS {key['blas']}; temperature {at['temperature']}, top-p {at['top_p']};",
        f"{took_s / 60:.0f} minutes, replies of {at['reply_tokens']} tokens.",
        "",
        *_block(report.choice_lines(profile)),
        "",
        "Tokens per second by depth:",
        "",
        *_block(report.speed_lines(profile)),
        "",
        "![Tokens per second by draft depth](tuning.svg)",
        "",
        "Milliseconds of a round by its rows, and of a step of the draft:",
        "",
        *_block(report.cost_lines(profile)),
        "",
        "Share of drafted tokens accepted if those before them were, in per cent:",
        "",
        *_block(report.acceptance_lines(profile)),
        "",
        *profile.notes,
    ]
    return "\n".join(lines).rstrip() + "\n"


def _block(lines: list[str]) -> list[str]:
    return ["```", *lines, "```"]


def main(path: Path) -> None:
    profile = read_profile(path)
    page = DOCS / "tuning.md"
    before, _, rest = page.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(before + BEGIN + section(profile) + END + after)
    write_chart(profile, DOCS / "tuning.svg")


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""The table of docs/models.md, made of the families' data.

python -m tests.families.page       writes it into the page
"""

from pathlib import Path

from mtplx.models.families import families
from mtplx.models.family import MtpFamily

PAGE = Path(__file__).parents[2] / "docs" / "models.md"
BEGIN = "<!-- the table, made by `python -m tests.families.page` -->\n"
END = "<!-- end of the table -->\n"
COLUMNS = (
    "family",
    "`model_type`",
    "tensors of the head",
    "fed from",
    "hands on from",
    "input",
    "notes",
    "tested against",
    "test",
)


def table() -> str:
    """A row for each family."""
    lines = [_row(COLUMNS), _row(["---"] * len(COLUMNS))]
    return "\n".join([*lines, *(_row(_cells(family)) for family in families())]) + "\n"


def page_with(table: str) -> str:
    """The page with this table in its place."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + table + END + after


def _cells(family: MtpFamily) -> list[str]:
    kinds = family.model_types
    others = f" (also {', '.join(f'`{kind}`' for kind in kinds[1:])})" if kinds[1:] else ""
    return [
        family.name,
        f"`{kinds[0]}`{others}",
        ", ".join(f"`{root.replace('{layer}', 'N')}`" for root in family.roots),
        _side(family.hidden_stage),
        _side(family.recycle_stage) if family.chained else "nothing",
        "embedding, hidden" if family.concat == "embedding_first" else "hidden, embedding",
        "; ".join(_notes(family)),
        family.reference,
        f"[{Path(family.tested).stem}](../{family.tested})",
    ]


def _notes(family: MtpFamily) -> list[str]:
    notes = []
    if family.zero_centred:
        notes.append("norms stored as w, used as 1 + w")
    if family.names.output is not None:
        notes.append("an output head of its own")
    if family.names.output_norm is None:
        notes.append("the trunk's final norm before the output head")
    if not family.chained:
        notes.append("every module is fed by the trunk: as many drafts as modules")
    return notes


def _side(stage: str) -> str:
    """before | after the norm."""
    return f"{stage.partition('_')[0]} the norm"


def _row(cells: list[str] | tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    PAGE.write_text(page_with(table()))

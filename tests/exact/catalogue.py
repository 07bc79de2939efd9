"""All mutants by where the mistake sits."""

from tests.exact.law_mutants import BLOCK, COUPLED, REJECTION
from tests.exact.loop_mutants import DRAFTS, LOOP
from tests.exact.mutants import Mutant
from tests.exact.random_mutants import DRAWS, RANDOMNESS
from tests.exact.warp_mutants import WARPS

CATALOGUE: dict[str, list[Mutant]] = {
    "rejection": REJECTION,
    "block": BLOCK,
    "coupled": COUPLED,
    "warps and histories": WARPS,
    "random numbers": RANDOMNESS,
    "draws": DRAWS,
    "drafts": DRAFTS,
    "loop and caches": LOOP,
}
MUTANTS = [mutant for mutants in CATALOGUE.values() for mutant in mutants]
NUM_SEEN = 24  # faults of other runtimes that docs/exactness.md numbers


def table() -> str:
    """The mutants as rows of a Markdown table: mistake, test, faults."""
    rows = [(str(m), m.caught_by[0], ", ".join(map(str, m.seen))) for m in MUTANTS]
    return "\n".join(f"| {m} | `{test}` | {seen + ' ' if seen else ''}|" for m, test, seen in rows)

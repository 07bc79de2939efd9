"""The proof that drafting changes no distribution: `make exact`, or `python -m tests.exact`.

One row for each law and setting: how far the texts of drafting are from the target's, how many
drafted tokens a round accepts and what theory expects, and how many of the mistakes that this
enumeration has to notice it notices. Below them, rows for what is not one law's: random numbers,
the loop and its caches, a recurrent model, the texts of real decodes. Exits with 1 where any row
falls short.

--full: every depth for each of the 200 seeds of the coupled law's texts (several minutes).
--mutants: print the table of mutants that docs/exactness.md ends with, and do nothing else.
"""

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.exact.mutants import Mutant
    from tests.exact.settings import Finding

_HEADER = (
    f"{'law':<10} {'setting':<24} {'tot. var.':>9} {'accepted':>9} {'in theory':>9} {'off by':>8}"
    f" {'rejection':>9} {'mutants':>8}"
)


@dataclass(slots=True)
class Tally:
    """What was found so far."""

    rows: int = 0
    worst: float = 0.0
    killed: int = 0
    made: int = 0
    faults: list[str] = field(default_factory=list)

    def catch(self, mutants: "list[Mutant]") -> str:
        """Put each mistake in; gives killed / made."""
        survivors = [mutant for mutant in mutants if not mutant.is_caught()]
        self.faults += [f"not caught: {mutant} ({mutant.caught_by[0]})" for mutant in survivors]
        self.killed += len(mutants) - len(survivors)
        self.made += len(mutants)
        return f"{len(mutants) - len(survivors)} / {len(mutants)}" if mutants else ""


def law_rows(tally: Tally) -> None:
    """The table of laws and settings."""
    from tests.exact.catalogue import MUTANTS
    from tests.exact.settings import LAWS, SETTINGS, examine

    _print(_HEADER)
    for law in LAWS:
        for name, setting in SETTINGS.items():
            finding = examine(law, setting())
            caught = tally.catch([m for m in MUTANTS if m.row == (law, name)])
            _print(_row(law, name, finding, caught))
            tally.rows += 1
            tally.worst = max(tally.worst, finding.total_variation)
            tally.faults += [f"{law}, {name}: {fault}" for fault in finding.faults(law)]


def _row(law: str, name: str, finding: "Finding", caught: str) -> str:
    off = abs(finding.accepted - finding.closed_form)
    return (
        f"{law:<10} {name:<24} {finding.total_variation:9.1e} {finding.accepted:9.6f}"
        f" {finding.closed_form:9.6f} {off:8.1e} {finding.rejection:9.6f} {caught:>8}"
    )


def mutant_rows(tally: Tally) -> None:
    """Mistakes that other tests than an enumeration have to notice."""
    from tests.exact.catalogue import CATALOGUE

    _print(f"\n{'elsewhere':<35} {'mutants':>8}")
    for place, mutants in CATALOGUE.items():
        others = [mutant for mutant in mutants if mutant.row is None]
        if others:
            _print(f"{place:<35} {tally.catch(others):>8}")


def hybrid_rows(tally: Tally) -> None:
    """The joint law of four tokens of a model with recurrent state, enumerated."""
    from tests.exact.closed_forms import expected_accepted
    from tests.exact.enumeration import drafted_law, mean_accepted
    from tests.exact.hybrid_law import decoded_scene, plain_texts
    from tests.exact.scene import total_variation
    from tests.exact.settings import TOLERANCE
    from tests.hybrid import hybrid_target

    _print(f"\n{'first four tokens of a hybrid model':<35} {'tot. var.':>9} {'off by':>8}")
    target = hybrid_target()
    for name, stop_id in (("no end token", None), ("an end token", 6)):
        scene = decoded_scene(target, stop_id)
        distance = total_variation(plain_texts(target, stop_id), drafted_law(scene))
        off = abs(mean_accepted(scene) - expected_accepted(scene))
        _print(f"{name:<35} {distance:9.1e} {off:8.1e}")
        tally.worst = max(tally.worst, distance)
        if not (distance < TOLERANCE and off < TOLERANCE):
            tally.faults.append(f"hybrid, {name}: {distance:.1e}, {off:.1e}")


def text_rows(tally: Tally, *, full: bool) -> None:
    """Texts of real decodes under the coupled law, with plain decoding's."""
    from tests.exact.coupled_text import all_depths, changed_texts, two_depths, writers

    _print(f"\n{'coupled: texts of 200 seeds':<35} {'compared':>9} {'changed':>8}")
    for name, writer in writers().items():
        few = name not in ("knowing head", "random head", "constant head", "lookup")
        runs = two_depths(40) if few else all_depths(200) if full else two_depths(200)
        changed, number = changed_texts(writer, runs)
        _print(f"{name:<35} {number:9} {len(changed):8}")
        tally.faults += [f"{name}: seed {s} changes at depth {k}" for s, k in changed]


def _print(line: str) -> None:
    print(line, flush=True)


def _parts(*, full: bool) -> Iterator[Callable[[Tally], None]]:
    yield law_rows
    yield mutant_rows
    yield hybrid_rows
    yield lambda tally: text_rows(tally, full=full)


def main(arguments: list[str]) -> int:
    """Run the proof, print it, and give the exit code."""
    unknown = set(arguments) - {"--full", "--mutants"}
    if unknown:
        print(f"exact: there is no {unknown.pop()}, only --full and --mutants.", file=sys.stderr)
        return 2
    from mtplx.blas import preload

    blas = preload("mlx")  # in which a block is computed like single rows, bit for bit
    import mlx.core as mx

    mx.set_default_device(mx.cpu)  # where nothing is left to kernels
    if "--mutants" in arguments:
        from tests.exact.catalogue import table

        print(table())
        return 0
    started_s, tally = time.perf_counter(), Tally()
    for part in _parts(full="--full" in arguments):
        part(tally)
    seconds = time.perf_counter() - started_s
    for fault in tally.faults:
        print(f"FALLS SHORT: {fault}", file=sys.stderr)
    _print(
        f"\n{tally.rows} rows, total variation at most {tally.worst:.1e}, "
        f"{tally.killed} of {tally.made} mutants caught, {len(tally.faults)} faults; "
        f"{seconds:.0f} s, BLAS: {blas.name}"
    )
    return 1 if tally.faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

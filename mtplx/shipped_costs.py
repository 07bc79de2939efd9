"""What rounds cost on kinds of machines, and how often drafts are accepted, before it is measured.

Only proportions count, so a round of one row takes 1. Where they come from stands beside each; a
profile of this machine takes their place, and without one the first rounds of a request put them
right.
"""

from dataclasses import dataclass

from mtplx.costs import CostCurve, Priors, expected_experts

_DRAFT = 0.06  # a token of a head: its layer and a shortlist of the vocabulary
_EXPERTS_SHARE = 0.7  # of a pass, that reading experts takes

SHIPPED_PRIORS: Priors = {
    "chat": (0.65, 0.58, 0.52, 0.48),
    "code": (0.8, 0.75, 0.72, 0.7),
    "structured": (0.88, 0.85, 0.82, 0.8),
    "prose": (0.48, 0.4, 0.35, 0.3),
    "unpredictable": (0.1, 0.1),
}
"""Between the head that is here and published ones of larger models. Text that no head predicts is
a class too, so that a few refusals are enough to tell."""

_ROWS: dict[str, tuple[float, ...]] = {
    # SmolLM2-135M in float32, measured on two cores of an Intel Xeon
    "cpu": (1.0, 1.06, 1.21, 1.55, 1.85),
    "cpu, mlx": (1.0, 1.67, 2.39, 3.09),
    # matrices of 4 bits in MLX 0.32, 1 to 8 rows: ml-explore/mlx issues 3863 (M3 Max),
    # 3839 (M4 Pro) and 4265 (M3 Ultra)
    "apple, m3": (1.0, 1.0, 1.14, 1.28, 1.66, 2.04, 2.27, 2.5),
    "apple, m4": (1.0, 1.03, 1.25, 1.47, 1.78, 2.08, 2.39, 2.69),
    "apple, ultra": (1.0, 1.83, 2.55, 3.26, 3.98, 4.69, 5.4, 6.12),
    # a round of a V100 with kernels for few rows: 0.383 of 17.35 ms more for each
    "cuda": (1.0, 1.022, 1.044, 1.066),
}


@dataclass(frozen=True, slots=True)
class Experts:
    """Of a mixture of experts: how many a layer has, and how many a row asks for."""

    num_experts: int
    num_chosen: int


def shipped_curve(machine: str, experts: Experts | None = None) -> CostCurve:
    """The curve of a kind of machine, as `machine_kind` names it.

    experts: of a model that has them. Each row of a block asks for its own, so that a block reads
    more of them than a row does (Cascade, arXiv 2506.20675).
    """
    rows = _ROWS.get(machine, _ROWS["apple, m4"])
    if experts is not None:
        rows = tuple(
            time * ((1 - _EXPERTS_SHARE) + _EXPERTS_SHARE * _more_experts(experts, num_rows))
            for num_rows, time in enumerate(rows, 1)
        )
    return CostCurve((1,), (rows,), (_DRAFT,))


def machine_kind(device: str, blas: str, gpu: str) -> str:
    """Which of the curves is that of this machine.

    device: "cpu" or "gpu". blas: who multiplies on the CPU, "mlx" for MLX itself. gpu: what MLX
    calls its architecture: "applegpu_g16s" is an M4, the last letter d an Ultra.
    """
    if device == "cpu":
        return "cpu, mlx" if blas == "mlx" else "cpu"
    if not gpu.startswith("applegpu"):
        return "cuda"
    if gpu.endswith("d"):
        return "apple, ultra"
    return "apple, m3" if "_g15" in gpu else "apple, m4"


def _more_experts(experts: Experts, num_rows: int) -> float:
    """The experts that a block reads, over those of one row."""
    read = expected_experts(experts.num_experts, experts.num_chosen, num_rows)
    return read / experts.num_chosen

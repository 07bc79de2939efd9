"""A profile as a run on a scripted machine leaves it."""

from mtplx.profile import Profile
from mtplx.tuner.conditions import Conditions
from mtplx.tuner.record import make_profile
from tests.tuner.scripted import ScriptedBench, plan, run

KEY: dict[str, str | int | float] = {
    "chip": "Scripted",
    "device": "cpu",
    "cores": 2,
    "memory": "16 GiB",
    "os": "Linux 6.1",
    "mlx": "0.32.4",
    "mtplx": "0.1.0",
    "blas": "mkl 2025.3, 2 threads",
    "model": "ab" * 16,
    "head": "cd" * 16,
    "quantisation": "float32",
    "kv": "float32",
}


def scripted_profile(model: str = "smollm2", **changes: str | int) -> Profile:
    """The profile of a run that drafting won. changes: of its key."""
    rates = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
    of = plan(contexts=(1024, 4096))
    outcome = run(ScriptedBench({"chat": rates, "code": rates}, noise=0.02), of)
    quiet = Conditions({})
    return make_profile(outcome, {**KEY, **changes}, model, quiet, quiet)

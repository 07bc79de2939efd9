"""Does drafting change greedy text? Compares token ids with plain decoding's, bit for bit.

    python -m benchmarks.greedy_identity --prompts 50 --depths 1,2,3,4,5,6

Runs at temperature 0 under MLX's own BLAS, which gives a row of a product the same bits however
many rows there are; faster libraries do not, and may then choose the other of two tokens whose
logits are almost equal. (Where MLX has another library built in, as on macOS, that one serves.)
Progress goes to standard error. The last line of standard output is one JSON object, and the exit
code is 1 where any token differs.
"""

import argparse
import json
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from mtplx.errors import MtplxError, UsageError
from mtplx.prompts import Prompt, shipped_prompts

if TYPE_CHECKING:
    from mtplx.loading.load import LoadedModel

MAX_WORKERS = 2  # each holds the whole model


@dataclass(frozen=True, slots=True)
class Task:
    """One prompt at every depth. index: its place among the prompts that ship."""

    index: int
    prompt: Prompt
    depths: tuple[int, ...]
    max_tokens: int
    model: str
    head: str | None


@dataclass(frozen=True, slots=True)
class Finding:
    """What one prompt showed.

    differs_at: for each depth whose tokens differ, the place of the first that does.
    num_rounds, num_tokens: per depth, for the tokens per round.
    """

    index: int
    num_plain_tokens: int
    differs_at: dict[int, int]
    num_rounds: dict[int, int]
    num_tokens: dict[int, int]
    blas: str


def compare(task: Task) -> Finding:
    """Decode a prompt plainly and at each depth. Runs in a worker process.

    The depths share one state, each going back to the prompt: most of the time would otherwise go
    into passing it again. Plain decoding has a state of its own.
    """
    model, blas = _loaded(task.model, task.head)
    from mtplx.generate import encode_prompt, generate
    from mtplx.params import SamplingParams

    params, text = SamplingParams(temperature=0, max_tokens=task.max_tokens), task.prompt.text
    plain = generate(model, text, params, depth=0).token_ids
    state = model.new_state(encode_prompt(model.tokenizer, text))
    differs_at, num_rounds, num_tokens = {}, {}, {}
    for depth in task.depths:
        result = generate(model, text, params, depth=depth, state=state)
        num_rounds[depth], num_tokens[depth] = result.stats.num_rounds, result.num_tokens
        if result.token_ids != plain:
            differs_at[depth] = _first_difference(plain, result.token_ids)
    return Finding(task.index, len(plain), differs_at, num_rounds, num_tokens, blas)


@cache
def _loaded(model: str, head: str | None) -> tuple["LoadedModel", str]:
    """The model, once per process, and the BLAS that serves it."""
    from mtplx.blas import preload

    blas = preload("mlx")
    from mtplx.loading.load import load

    loaded = load(model, head=head)
    if not loaded.can_draft:
        raise UsageError(f"There is nothing to compare: {loaded.no_head_reason}")
    return loaded, blas.name


def _first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def run(tasks: Sequence[Task], num_workers: int) -> list[Finding]:
    """Every task's finding, in order, with a line of progress for each."""
    context = multiprocessing.get_context("spawn")  # a fork would share MLX's threads
    findings = []
    with ProcessPoolExecutor(num_workers, mp_context=context) as pool:
        try:
            for task, finding in zip(tasks, pool.map(compare, tasks), strict=True):
                findings.append(finding)
                print(_line(task, finding, len(tasks)), file=sys.stderr, flush=True)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return findings


def _line(task: Task, finding: Finding, total: int) -> str:
    found = ", ".join(f"depth {k} differs at {i}" for k, i in finding.differs_at.items())
    verdict = found or "identical at every depth"
    tokens = f"{finding.num_plain_tokens} tokens"
    return f"{task.index + 1} of {total} ({task.prompt.kind}, {tokens}): {verdict}"


def summary(
    tasks: Sequence[Task], findings: Sequence[Finding], seconds: float
) -> dict[str, object]:
    """The line of JSON."""
    from importlib.metadata import version

    rounds: Counter[int] = Counter()
    tokens: Counter[int] = Counter()
    for finding in findings:
        rounds.update(finding.num_rounds)
        tokens.update(finding.num_tokens)
    mismatches = [
        {"prompt": finding.index, "depth": depth, "position": position}
        for finding in findings
        for depth, position in finding.differs_at.items()
    ]
    first = tasks[0]
    return {
        "identical": not mismatches,
        "mismatches": mismatches,
        "prompts": len(tasks),
        "depths": list(first.depths),
        "max_tokens": first.max_tokens,
        "plain_tokens": sum(finding.num_plain_tokens for finding in findings),
        "acceptance_length": {str(k): tokens[k] / rounds[k] for k in sorted(rounds)},
        "model": first.model,
        "blas": findings[0].blas,
        "mlx": version("mlx"),
        "seconds": round(seconds, 1),
    }


def parse(arguments: Sequence[str]) -> tuple[list[Task], int]:
    """The tasks and the number of workers that a command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.greedy_identity", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--head", help="the MTP head, in place of the one found")
    parser.add_argument("--prompts", type=int, default=50, help="how many of those that ship")
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--depths", default="1,2,3,4,5,6")
    parser.add_argument("--workers", type=int, default=MAX_WORKERS)
    given = parser.parse_args(arguments)
    prompts = shipped_prompts()
    if not 1 <= given.prompts <= len(prompts):
        raise UsageError(f"--prompts is {given.prompts}, but must be from 1 to {len(prompts)}.")
    if not 1 <= given.workers <= MAX_WORKERS:
        raise UsageError(f"--workers is {given.workers}, but must be from 1 to {MAX_WORKERS}.")
    words = [word.strip() for word in given.depths.split(",")]
    if not all(word.isascii() and word.isdigit() and int(word) > 0 for word in words):
        raise UsageError(f"--depths is {given.depths!r}, but must be numbers such as 1,2,4.")
    depths = tuple(dict.fromkeys(int(word) for word in words))
    tasks = [
        Task(i, prompt, depths, given.max_tokens, given.model, given.head)
        for i, prompt in enumerate(prompts[: given.prompts])
    ]
    return tasks, min(given.workers, len(tasks))


def main(arguments: Sequence[str]) -> int:
    """Compare, print the line of JSON, and give the exit code."""
    started_s = time.perf_counter()
    try:
        tasks, num_workers = parse(arguments)
        findings = run(tasks, num_workers)
    except MtplxError as error:
        print(f"greedy_identity: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    result = summary(tasks, findings, time.perf_counter() - started_s)
    print(json.dumps(result), flush=True)
    return 0 if result["identical"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

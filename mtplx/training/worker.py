"""One of several processes that write the trunk's own text, a chunk at a time.

Run as `python -m mtplx.training.worker` by `training/crew.py`, which writes a task to its standard
input: one line of JSON. Separate processes, each with one thread, because MLX on a CPU does
everything but matrix products on one thread. It ends when its standard input does, which happens
at once when whoever started it is gone, however that came.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence

from mtplx import blas
from mtplx.errors import MtplxError

TICK = b"."  # on standard output, for each position of the chunk in hand
CACHE_BYTES = 2 << 30  # buffers MLX may keep; giving them back to the system costs a third


def write_chunks(line: str, numbers: Sequence[int], tick: Callable[[int], None]) -> None:
    """Write chunks of the plan that `line` holds, each the same wherever it is written.

    tick: told how many positions of a chunk were done. What is imported here must not be imported
    before the BLAS is chosen.
    """
    import mlx.core as mx

    from mtplx.loading.load import load
    from mtplx.models.llama_like import own_trunk
    from mtplx.training.engine import make_writer
    from mtplx.training.framing import chat_framing
    from mtplx.training.own_text import mixed_temperatures, write_conversations
    from mtplx.training.passages_file import write_passages
    from mtplx.training.plan import plan_from_json
    from mtplx.training.prompts import user_prompts
    from mtplx.training.run_folder import chunk_path

    mx.set_cache_limit(CACHE_BYTES)
    plan = plan_from_json(line)
    loaded = load(plan.model)
    target, tokenizer = own_trunk(loaded.target), loaded.tokenizer
    assert target is not None
    del loaded  # of a folder, whose weights are held twice until here
    framing = chat_framing(tokenizer)
    writer = make_writer(plan.engine, target)
    for number in numbers:
        seed = plan.seed * 100_003 + number
        prompts = user_prompts(seed)
        encoded = ((p, tokenizer.encode(p.text, parse_special=False)) for p in prompts)
        passages = write_conversations(
            writer,
            framing,
            encoded,
            temperatures=mixed_temperatures(plan.rows_per_chunk),
            length=plan.passage_length,
            seed=seed,
            tick=tick,
        )
        write_passages(chunk_path(plan.folder, number), passages)


def main() -> int:
    # An interrupt from the keyboard is for whoever started this to answer.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with open(0, "rb", buffering=0, closefd=False) as source:  # nothing beyond the line is taken
        task = json.loads(source.readline() or b"null")
    if task is None:
        return 1
    threading.Thread(target=_end_with_parent, daemon=True).start()
    blas.preload(task["blas"])
    try:
        write_chunks(task["plan"], task["numbers"], _tell_tick)
    except MtplxError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


def _tell_tick(num_positions: int) -> None:
    os.write(1, TICK * num_positions)


def _end_with_parent() -> None:
    while os.read(0, 1024):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())

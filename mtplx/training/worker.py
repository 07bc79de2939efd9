"""One of several processes that write the trunk's own text, a chunk at a time.

Run as `python -m mtplx.training.worker MODEL FOLDER INDEX COUNT NUM_CHUNKS SEED`. Separate
processes, each with one BLAS thread, because MLX on a CPU does everything but matrix products on
one thread.
"""

import os
import sys
from pathlib import Path

from mtplx import blas
from mtplx.errors import MtplxError

CHUNK_ROWS = 64
CHUNK_LENGTH = 384
CACHE_BYTES = 2 << 30  # buffers MLX may keep; giving them back to the system costs a third


def chunk_path(folder: Path, number: int) -> Path:
    return folder / f"own-{number:05d}.npz"


def write_chunks(model: str, folder: Path, numbers: list[int], seed: int) -> None:
    """Write those of the chunks that are not there yet."""
    import mlx.core as mx

    from mtplx.loading.load import load
    from mtplx.models.llama import LlamaTarget
    from mtplx.training.framing import chat_framing
    from mtplx.training.own_text import mixed_temperatures, write_conversations
    from mtplx.training.passages_file import write_passages
    from mtplx.training.prompts import user_prompts

    mx.set_cache_limit(CACHE_BYTES)
    loaded = load(model)
    assert isinstance(loaded.target, LlamaTarget)
    framing = chat_framing(loaded.tokenizer)
    parent = os.getppid()
    for number in numbers:
        path = chunk_path(folder, number)
        if path.exists():
            continue
        prompts = user_prompts(seed * 100_003 + number)
        encoded = ((p, loaded.tokenizer.encode(p.text, parse_special=False)) for p in prompts)
        passages = write_conversations(
            loaded.target,
            framing,
            encoded,
            temperatures=mixed_temperatures(CHUNK_ROWS),
            length=CHUNK_LENGTH,
            seed=seed * 100_003 + number,
        )
        write_passages(path, passages)
        if os.getppid() != parent:
            return  # whoever asked for the text is gone


def main() -> int:
    model, folder, index, count, num_chunks, seed = sys.argv[1:]
    blas.preload()
    numbers = list(range(int(index), int(num_chunks), int(count)))
    try:
        write_chunks(model, Path(folder), numbers, int(seed))
    except MtplxError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

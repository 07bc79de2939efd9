"""What each of several processes does in tests of a model that is split over machines.

python -m tests.rank FOLDER        with MLX_RANK and MLX_HOSTFILE, as mlx.launch sets them
"""

import json
import sys
from pathlib import Path

import mlx.core as mx

from mtplx.draft_options import DraftOptions
from mtplx.errors import MtplxError
from mtplx.generate import generate
from mtplx.loading.load import LoadedModel, load

TEXT = "import os\nimport sys\n\n\ndef main():\n    "


def as_float32(folder: Path, copy: Path) -> Path:
    """A checkpoint in float32, whose sums in another order choose no other token."""
    copy.mkdir()
    for file in folder.iterdir():
        if file.suffix == ".json":
            (copy / file.name).write_bytes(file.read_bytes())
    tensors = mx.load(str(folder / "model.safetensors"))
    assert isinstance(tensors, dict)
    wide = {name: array.astype(mx.float32) for name, array in tensors.items()}
    mx.save_safetensors(str(copy / "model.safetensors"), wide)
    return copy


def token_ids(model: LoadedModel) -> dict[str, list[int]]:
    """What the model answers: plain, drafted, drawn at random, and after going back in a text."""
    drafts = DraftOptions(lookup=False) if model.can_draft else DraftOptions(mode="lookup")

    def text(depth: int, temperature: float = 0.0) -> list[int]:
        found = generate(
            model,
            TEXT,
            raw=True,
            max_tokens=12,
            temperature=temperature,
            law="coupled",
            seed=5,
            depth=depth,
            draft=drafts,
        )
        return list(found.token_ids)

    state = model.new_state()
    turns = [
        generate(
            model,
            TEXT + end,
            raw=True,
            state=state,
            max_tokens=6,
            temperature=0.0,
            depth=2,
            draft=drafts,
        )
        for end in ("return x", "return x", "for y in")
    ]
    return {
        "plain": text(0),
        "drafted": text(3),
        "drawn": text(2, temperature=0.8),
        "turns": [token for turn in turns for token in turn.token_ids],
        "reused": [turn.stats.num_reused_tokens for turn in turns],
    }


def main() -> int:
    try:
        model = load(sys.argv[1], distributed=True)
    except MtplxError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps(token_ids(model)))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Replies on the path that users get, over states that keep the prompts they have read."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import mlx.core as mx

from mtplx.bench.costs import measure_passes
from mtplx.bench.measure import Progress
from mtplx.draft_options import DraftOptions
from mtplx.generate import EncodedPrompt, generate, stream
from mtplx.kernels.product import RowTile
from mtplx.loading.load import LoadedModel
from mtplx.machine import memory_bytes
from mtplx.params import SamplingParams
from mtplx.state import DecodeState
from mtplx.tuner.tiles import best_tiles, packed_matrices, sample
from mtplx.tuner.trial import Cell, Sample

STATES_SHARE = 8  # of the memory, one part in so many may hold prompts that were read


class ProductBench:
    """`mtplx.generate` with a loaded model, and the machine's clock."""

    def __init__(self, model: LoadedModel, params: SamplingParams) -> None:
        # What an earlier run found must not steer this one.
        self._model, self._params = replace(model, depth_costs=None), params
        self._states: dict[Cell, DecodeState] = {}

    def now_s(self) -> float:
        return time.perf_counter()

    def tiles(self, progress: Progress) -> Mapping[str, RowTile]:
        """Of the packed matrices of the model; nothing is timed where no GPU multiplies them."""
        tiling, matrices = self._model.tiling, packed_matrices(self._model.target)
        tiling.use({})
        found = best_tiles(sample(matrices), progress) if mx.metal.is_available() else {}
        tiling.use(found)
        return found

    def open(self, cell: Cell) -> bool:
        """Make a state for the cell; the oldest others go where they would fill the memory."""
        if cell in self._states:
            self._states[cell] = self._states.pop(cell)
            return False
        while self._states and self._held_bytes() > memory_bytes() // STATES_SHARE:
            del self._states[next(iter(self._states))]
        self._states[cell] = self._model.new_state(list(cell.token_ids))
        return True

    def _held_bytes(self) -> int:
        held = [state.num_bytes for state in self._states.values()]
        return sum(held) + max(held)  # the next one will need as much

    def reply(
        self, cell: Cell, depth: int, seed: int, num_tokens: int, draft: DraftOptions
    ) -> Sample:
        """A reply at a fixed depth; what of the prompt was read before is not read again."""
        result = generate(
            self._model,
            EncodedPrompt(cell.token_ids),
            replace(self._params, seed=seed, max_tokens=num_tokens),
            depth=depth,
            draft=draft,
            state=self._states[cell],
        )
        mx.synchronize()  # a pass that was queued ahead and thrown away must not slow the next arm
        stats = result.stats
        found = stats.sources["lookup"].drafted if "lookup" in stats.sources else 0
        return Sample(
            num_tokens=result.num_tokens,
            num_rounds=stats.num_rounds,
            decode_s=stats.decode_s,
            draft_s=stats.draft_s,
            verify_s=stats.verify_s,
            num_from_head=sum(stats.drafted) - found,
            drafted=tuple(stats.drafted),
            accepted=tuple(stats.accepted),
        )

    def plain(self, cell: Cell, seed: int, num_tokens: int) -> Sample:
        """Plain decoding in a state of its own, timed from the first event to the last."""
        params = replace(self._params, seed=seed, max_tokens=num_tokens)
        started_s, ended_s, count = 0.0, 0.0, -1
        for event in stream(self._model, EncodedPrompt(cell.token_ids), params, depth=0):
            ended_s = time.perf_counter()
            started_s = started_s or ended_s
            count += len(event.token_ids)
        mx.synchronize()
        # A text of one token has no time between tokens; its prefill is not what is asked for.
        return Sample(max(count, 1), max(count, 1), max(ended_s - started_s, 1e-9), 0, 0, 0, (), ())

    def passes_s(self, cell: Cell, max_depth: int) -> Sequence[float]:
        """Medians of passes of 1 to max_depth + 1 rows, in turns."""
        times_ms = measure_passes(self._model, cell.token_ids, max_depth + 1)
        return [ms.median / 1000 for ms in times_ms]

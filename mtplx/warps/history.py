"""What rows of logits come after."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class History:
    """The tokens that stand before the rows to be warped.

    token_ids: the committed tokens, the prompt and the pending token included.
    draft: [K] int32, drafted tokens after them. The last row sees all of it and each row before
        it one token less: the K + 1 rows of a verify pass see 0 to K of them, and the one row of
        a drafter sees all that it has drafted so far.
    gates: [R] float32 in [0, 1), the number that decides at each row whether XTC acts there. Tied
        to the position of the token, so that everything that is done at a position, drafts
        included, goes by the same one. Only XTC needs them.
    """

    token_ids: Sequence[int]
    draft: mx.array | None = None
    gates: mx.array | None = None

    def drafted(self) -> mx.array:
        """[K] int32, none where there is no draft."""
        return mx.zeros(0, dtype=mx.int32) if self.draft is None else self.draft

    def num_ahead(self, num_rows: int) -> NDArray[np.int64]:
        """[R], how many of the drafted tokens each of so many rows sees."""
        num_drafted = 0 if self.draft is None else len(self.draft)
        ahead = np.arange(num_drafted - num_rows + 1, num_drafted + 1)
        assert ahead[0] >= 0, "more rows than the draft has tokens, and one"
        return ahead

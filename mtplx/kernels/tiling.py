"""Which tiles the kernels of one model take: the usual ones, or what was measured to be faster."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from mtplx.kernels.packing import PackedWeight
from mtplx.kernels.product import DEFAULT_TILES, RowTile, Tiles


@dataclass(eq=False, slots=True)
class Tiling:
    """Tiles by the name of a packing. All matrices of a model share one, so that what is found out
    about the machine once they are loaded reaches each of them."""

    by_packing: dict[str, Tiles] = field(default_factory=dict)

    def of(self, weight: PackedWeight) -> Tiles:
        """The tiles of products with this weight."""
        return self.by_packing.get(weight.packing.name, DEFAULT_TILES)

    def use(self, tiles: Mapping[str, RowTile]) -> None:
        """Take these for few rows from now on, and the usual ones for everything else."""
        self.by_packing = {name: Tiles(few=tile) for name, tile in tiles.items()}

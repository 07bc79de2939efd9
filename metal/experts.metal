// Which expert a tile of rows belongs to, where the rows are sorted by expert: rows starts[e] up to
// starts[e + 1] are those of expert e. Every expert has tiles of its own, so none holds rows of
// two.
struct ExpertRows {
  uint expert;
  uint first;
  uint end;  // 0: there is no such tile
};

template <typename Starts>
inline ExpertRows expert_rows(Starts starts, uint experts, uint tile, uint tile_rows) {
  for (uint e = 0; e < experts; e++) {
    const uint count = starts[e + 1] - starts[e];
    const uint tiles = (count + tile_rows - 1) / tile_rows;
    if (tile < tiles) {
      return {e, uint(starts[e]) + tile * tile_rows, uint(starts[e + 1])};
    }
    tile -= tiles;
  }
  return {0, 0, 0};
}

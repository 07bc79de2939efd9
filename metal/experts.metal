// Which expert a tile of rows belongs to, where the rows are sorted by expert: rows ranges[e, 0] up to
// ranges[e, 1] are those of expert e. Every expert has tiles of its own, so none holds rows of two.
struct ExpertRows {
  uint expert;
  uint first;
  uint end;  // 0: there is no such tile
};

template <typename Ranges>
inline ExpertRows expert_rows(Ranges ranges, uint experts, uint tile, uint tile_rows) {
  for (uint e = 0; e < experts; e++) {
    const uint first = ranges[2 * e];
    const uint end = ranges[2 * e + 1];
    const uint tiles = (end - first + tile_rows - 1) / tile_rows;
    if (tile < tiles) {
      return {e, first + tile * tile_rows, end};
    }
    tile -= tiles;
  }
  return {0, 0, 0};
}

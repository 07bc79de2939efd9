"""Finding the largest entries of long rows, equal ones by their column, lowest first."""

import mlx.core as mx

_NUM_GROUPED = 8  # entries per group in the search for the largest


def best_columns(x: mx.array, num_columns: int) -> mx.array:
    """Columns [R, num_columns] of the largest entries, ascending; of equal ones, any.

    The largest entries stand in the groups with the largest maxima, so a cheap maximum over
    groups spares a partition of the whole row.
    """
    if not pays(num_columns, x.shape[-1]):
        return mx.sort(mx.argpartition(-x, num_columns - 1, axis=-1)[:, :num_columns], axis=-1)
    maxima = group_maxima(x)
    num_rows, num_groups = maxima.shape
    groups = mx.argpartition(-maxima, num_columns - 1, axis=-1)[:, None, :num_columns]
    members = mx.arange(0, x.shape[-1], num_groups)[:, None]
    columns = (groups.astype(mx.int32) + members).reshape(num_rows, -1)
    values = mx.take_along_axis(x, columns, axis=-1)
    best = mx.argpartition(-values, num_columns - 1, axis=-1)[:, :num_columns]
    return mx.sort(mx.take_along_axis(columns, best, axis=-1), axis=-1)


def pays(num_columns: int, row_length: int) -> bool:
    """Whether `best_columns` looks at less than the whole row."""
    return num_columns * _NUM_GROUPED < row_length


def group_maxima(x: mx.array) -> mx.array:
    """Maxima [R, G] of interleaved groups: group g holds the columns g, g + G, g + 2 G, …"""
    num_rows, row_length = x.shape
    num_grouped = _NUM_GROUPED if row_length % _NUM_GROUPED == 0 else 1
    return mx.max(x.reshape(num_rows, num_grouped, -1), axis=1)


def at_least(x: mx.array, last: mx.array, num_kept: mx.array) -> mx.array:
    """[R, C], whether an entry is one of the `num_kept` [R, 1] largest, whose least is `last`."""
    above, equal = x > last, x == last
    num_equal = num_kept - mx.sum(above, axis=-1, keepdims=True)
    return above | (equal & (mx.cumsum(equal, axis=-1) <= num_equal))

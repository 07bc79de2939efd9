"""The codebooks of IQ1, IQ2 and IQ3 as Metal tables: `python -m tests.kernels.codebook_text`.

The entries are ggml's, as the `gguf` package has them. IQ1 and IQ2 have eight numbers of three
values in an entry, here fields of two bits; IQ3 has four, here bytes.
"""

from pathlib import Path

import numpy as np

from mtplx.quant.grids import codebook

METAL = Path(__file__).parents[2] / "metal"
_VALUES = {"IQ1_S": (-1, 0, 1), "IQ2_XXS": (8, 25, 43), "IQ2_XS": (8, 25, 43), "IQ2_S": (8, 25, 43)}
FILES = {"IQ1_S": "IQ1", "IQ2_XXS": "IQ2_XXS", "IQ2_XS": "IQ2_XS", "IQ2_S": "IQ2_S"}
FILES |= {"IQ3_XXS": "IQ3_XXS", "IQ3_S": "IQ3_S"}


def path_of(name: str) -> Path:
    return METAL / f"{FILES[name].lower()}_codebook.metal"


def text_of(name: str) -> str:
    """The file that holds one format's codebook."""
    entries = codebook(name)
    if name in _VALUES:
        codes = np.searchsorted(_VALUES[name], entries).astype(np.uint32)
        words = (codes << (2 * np.arange(8, dtype=np.uint32))).sum(1)
        kind, width, what = "ushort", 4, "eight fields of two bits"
    else:
        words = (entries.astype(np.uint32) << (8 * np.arange(4, dtype=np.uint32))).sum(1)
        kind, width, what = "uint", 8, "four bytes"
    numbers = [f"0x{word:0{width}x}" for word in words.tolist()]
    per_line = 12 if width == 4 else 8
    lines = [", ".join(numbers[i : i + per_line]) for i in range(0, len(numbers), per_line)]
    table = ",\n  ".join(lines)
    label = FILES[name]
    return (
        f"// The codebook of {label.replace('IQ1', 'IQ1_S and IQ1_M')} (ggml-common.h of ggml). "
        f"An entry is {what},\n// the first weight in the lowest.\n"
        f"constant {kind} {label}_ENTRIES[{len(numbers)}] = {{\n  {table}}};\n"
    )


def main() -> None:
    for name in FILES:
        path_of(name).write_text(text_of(name))


if __name__ == "__main__":
    main()

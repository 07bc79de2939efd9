"""Whether the norms of a stored head are zero-centred: stored as w, and used as 1 + w.

Checkpoints of some families are published so, and conversions store 1 + w. Adding one twice, or not
at all, breaks no shape and raises no error; it only halves acceptance. Numbers do not tell either:
a trained w lies anywhere. So it is decided by what is certain, for each file of the head, the first
of these that says anything:

1. what `mtplx convert` wrote into the file's header;
2. how the head's own tensors are laid out: experts one by one or fused are as published, stacked
   ones and MLX's packed matrices are converted;
3. how tensors of the trunk in the same file are laid out;
4. the header's `format`, which names the library that wrote the file: "pt" or "mlx";
5. the trunk, if it is as published: nobody converts a head and leaves its trunk.

A file of which none of it is known is refused by name.
"""

import re
from collections.abc import Iterable

from mtplx.errors import HeadError
from mtplx.loading.stored_tensors import StoredFile
from mtplx.models.family import MtpFamily, Tensors

CONVERTED_KEY = "mtplx"  # in the header of every file that `mtplx convert` writes
_PUBLISHED = re.compile(r"\.experts\.(\d+\.|gate_up_proj|down_proj)")


def is_zero_centred(
    family: MtpFamily, files: Iterable[tuple[StoredFile, Tensors]], trunk: Tensors
) -> bool:
    """Whether one has to be added to the head's norms.

    files: each file that holds tensors of the head, with those of them that it holds. trunk: all
    of the trunk's. Raises HeadError where nothing tells, or where files contradict each other.
    """
    if not family.zero_centred or family.is_raw is None:
        return False
    found = {file.path.name: _of_file(family, file, head, trunk) for file, head in files}
    if len(set(found.values())) > 1:
        raw = sorted(name for name, is_raw in found.items() if is_raw)
        other = sorted(found.keys() - set(raw))
        raise HeadError(
            f"the norms of the MTP head are as published in {raw[0]} and converted in {other[0]}. "
            "Fetch the original checkpoint again."
        )
    return True in found.values()


def _of_file(family: MtpFamily, file: StoredFile, head: Tensors, trunk: Tensors) -> bool:
    assert family.is_raw is not None
    if CONVERTED_KEY in file.metadata:
        return False
    rest = {name: array for name, array in file.tensors.items() if name not in head}
    layouts = (_head_layout(head), family.is_raw(rest))
    if set(layouts) == {True, False}:
        raise HeadError(
            f"{file.path} holds a trunk and an MTP head of which one was converted and the other "
            "was not. Fetch the original checkpoint again."
        )
    label = {"pt": True, "mlx": False}.get(file.metadata.get("format", ""))
    for answer in (*layouts, label, family.is_raw(trunk) or None):
        if answer is not None:
            return answer
    raise HeadError(
        f"{file.path} does not tell whether the norms of its MTP head are stored as w or as 1 + w: "
        'its header names no format ("pt" as published, "mlx" as converted), and the trunk beside '
        "it was converted. Take the file from the original checkpoint, or make both with "
        "`mtplx convert`."
    )


def _head_layout(head: Tensors) -> bool | None:
    if any(_PUBLISHED.search(name) for name in head):
        return True
    packed = any(name.endswith(".scales") for name in head)
    packed = packed and any(name.endswith(".biases") for name in head)
    return False if packed or any(".switch_mlp." in name for name in head) else None

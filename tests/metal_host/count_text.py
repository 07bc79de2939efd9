"""Counters in a kernel's LLVM text: how many operations of each kind its threads execute.

Every basic block adds what stands in it to global counters. The text is what clang made of the
kernel, optimised but not vectorised: not a GPU's instructions, but a count that is the same on
every machine and follows the work that the source asks for. An operation on a vector of n counts n.
"""

import re
from collections import Counter

KINDS = ("float", "integer", "convert", "load", "store", "call")
_FLOAT = {"fadd", "fsub", "fmul", "fdiv", "fneg", "fcmp"}
_INTEGER = {"add", "sub", "mul", "udiv", "sdiv", "urem", "srem", "shl", "lshr", "ashr"}
_INTEGER |= {"and", "or", "xor", "icmp", "select"}
_CONVERT = {"fptrunc", "uitofp", "sitofp", "fptoui", "fptosi"}
# Widening (of integers, of half to float) is not counted: it comes with the load before it or with
# the operation that it feeds. Nor is narrowing of integers, or a bitcast.
_OPERATION = re.compile(r"^\s+(?:%[\w.]+ = )?(?:(?:tail|musttail|notail) )?([a-z]+)\b(.*)$")
_VECTOR = re.compile(r"<(\d+) x ")
_LABEL = re.compile(r'^(?:[\w.$-]+|"[^"]+"):')
_DEFINE = re.compile(r"^define .*?@\"?([\w.$]+)")
_FLOAT_CALL = re.compile(r"@llvm\.(?:fma|fmuladd|fabs|minnum|maxnum|copysign|sqrt)\.")
_INTEGER_CALL = re.compile(r"@llvm\.(?:[su](?:min|max)|abs|ctpop|ctlz|cttz|fsh[lr]|bswap)\.")
_HOST = re.compile(r"mslh(?!_kernel$)")


def with_counters(text: str) -> str:
    """The LLVM text with a counter per kind, `@mslh_count`, bumped in every basic block."""
    out: list[str] = []
    block: list[str] = []
    inside = False
    number = 0
    for line in text.splitlines():
        if (start := _DEFINE.match(line)) and not _HOST.search(start[1]):
            inside = True
            out.append(line)
        elif inside and (line == "}" or _LABEL.match(line)):
            out += _counted(block, number)
            number += 1
            block = []
            out.append(line)
            inside = line != "}"
        elif inside:
            block.append(line)
        else:
            out.append(line)
    return "\n".join([*out, f"@mslh_count = global [{len(KINDS)} x i64] zeroinitializer", ""])


def _counted(block: list[str], number: int) -> list[str]:
    """The block with its additions, which stand behind its phi nodes."""
    counts = Counter[str]()
    for line in block:
        if (found := kind_of(line)) is not None:
            counts[found[0]] += found[1]
    at = 0
    while at < len(block) and re.match(r"^\s*(?:$|;|%[\w.]+ = phi |#dbg_)", block[at]):
        at += 1
    additions: list[str] = []
    for kind, count in counts.items():
        name = f"%mslh.{number}.{kind}"
        where = f"getelementptr (i64, ptr @mslh_count, i64 {KINDS.index(kind)})"
        additions += [
            f"  {name}.old = load i64, ptr {where}, align 8",
            f"  {name}.new = add i64 {name}.old, {count}",
            f"  store i64 {name}.new, ptr {where}, align 8",
        ]
    return [*block[:at], *additions, *block[at:]]


def kind_of(line: str) -> tuple[str, int] | None:
    """Which kind of operation a line is and how many, or None for what costs nothing."""
    found = _OPERATION.match(line)
    if not found:
        return None
    word, rest = found.groups()
    width = int(vector[1]) if (vector := _VECTOR.search(rest)) else 1
    if word in _FLOAT:
        return "float", width
    if word in _INTEGER:
        return "integer", width
    if word in _CONVERT:
        return "convert", width
    if word in ("load", "store"):
        return word, 1
    if word == "call":
        return _kind_of_call(rest, width)
    return None


def _kind_of_call(rest: str, width: int) -> tuple[str, int] | None:
    if _FLOAT_CALL.search(rest):
        return "float", width
    if _INTEGER_CALL.search(rest):
        return "integer", width
    return None if "@llvm." in rest else ("call", 1)

"""What is changed in a kernel's text before a C++ compiler sees it. Line numbers stay.

- 1.5 becomes 1.5f: without a suffix it is a float in Metal and a double in C++.
- `threadgroup T x[..];` in a function becomes a variable in a section of its own.
- `vec<T, N>(..)` and `static_cast<bfloat>(..)` become functions: C++ has no such constructors.
- `template [[..]]` and `[[threadgroup(0)]]` lose their attributes.
"""

import re

_TOKEN = re.compile(
    r"//[^\n]*|/\*.*?\*/"
    r"|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'"
    r"|\s+"
    r"|[A-Za-z_]\w*"
    r"|0[xX][\w.]*(?:[pP][+-]?\d+\w*)?"
    r"|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?\w*"
    r"|\[\[|\]\]|::|.",
    re.S,
)
_FLOAT = re.compile(r"(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+")
_CAST_TO = {"bfloat", "bfloat16_t", "half", "float16_t"}


class _Tokens:
    """The tokens of a text; those that are neither blank nor comment have a number."""

    def __init__(self, text: str) -> None:
        self.all: list[str] = _TOKEN.findall(text)
        self.code = [
            i for i, s in enumerate(self.all) if not s.isspace() and not s.startswith(("//", "/*"))
        ]

    def __len__(self) -> int:
        return len(self.code)

    def __getitem__(self, k: int) -> str:
        return self.all[self.code[k]] if 0 <= k < len(self.code) else ";"

    def __setitem__(self, k: int, value: str) -> None:
        self.all[self.code[k]] = value

    def drop_attribute(self, k: int) -> int:
        """Drop what stands between [[ at k and its ]]; the number of the token behind it."""
        while self[k] != "]]":
            self[k] = ""
            k += 1
        self[k] = ""
        return k + 1


def rewrite(text: str) -> str:
    """The text as C++, to be compiled against include/metal_stdlib."""
    tokens = _Tokens(text)
    depth = 0
    for k in range(len(tokens)):
        token = tokens[k]
        depth += {"{": 1, "}": -1}.get(token, 0)
        if _FLOAT.fullmatch(token):
            tokens[k] = token + "f"
        elif token == "threadgroup" and depth and tokens[k - 1] in ";{}":
            if _declares_memory(tokens, k + 1):
                tokens[k] = "MSLH_TGVAR"
        elif token == "static_cast" and tokens[k + 1] == "<" and tokens[k + 3] == ">":
            if tokens[k + 2] in _CAST_TO:
                tokens[k] = "::mslh::cast"
        elif token == "[[" and tokens[k + 1] == "threadgroup":
            tokens.drop_attribute(k)
        elif token == "vec" and tokens[k + 1] == "<":
            _construct(tokens, k)
        elif token == "template" and tokens[k + 1] == "[[":
            at = tokens.drop_attribute(k + 1)
            while tokens[at] == "[[":
                at = tokens.drop_attribute(at)
    return "".join(tokens.all)


def _declares_memory(tokens: _Tokens, k: int) -> bool:
    """Whether a declaration that began with `threadgroup` is a variable, not a pointer to one."""
    declared = []
    while k < len(tokens) and tokens[k] not in (";", "=", "{"):
        declared.append(tokens[k])
        k += 1
    return "*" not in "".join(declared).split("[")[0] and "&" not in declared


def _construct(tokens: _Tokens, k: int) -> None:
    """vec<T, N>( at token k: a call of mslh::mk."""
    depth, end = 0, k + 1
    while end < len(tokens):
        depth += {"<": 1, ">": -1}.get(tokens[end], 0)
        if depth == 0:
            break
        end += 1
    before = tokens[k - 1]
    if tokens[end + 1] != "(" or before in ("operator", "using", "typename"):
        return
    tokens[k] = "::mslh::mk<::metal::vec"
    tokens[end] = ">>"
    if before == "::" and tokens[k - 2] == "metal":
        tokens[k - 1] = tokens[k - 2] = ""

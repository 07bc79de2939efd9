"""Models that this program loads and that are better than the default one, by what they need.

No file sizes are copied from anywhere: parameters follow from the published dimensions, bytes from
the parameters and the bits of each. None of these brings an MTP head, so they decode plainly.
"""

from dataclasses import dataclass

CONTEXT = 8192  # tokens of conversation that should fit beside the weights


@dataclass(frozen=True, slots=True)
class Suggestion:
    """A model of the Hugging Face hub.

    model: its name for `--model`. bits: of a stored weight, scales included.
    head_norms: whether queries and keys are normalised, head by head. tied: one matrix serves as
    embedding and as output.
    """

    model: str
    model_type: str
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    mlp_size: int
    vocab_size: int
    tied: bool
    head_norms: bool
    bits: float

    @property
    def num_parameters(self) -> int:
        """All weights and norms."""
        width = self.hidden_size
        attention = 2 * width * self.head_dim * (self.num_heads + self.num_kv_heads)
        norms = 2 * width + 2 * self.head_dim * self.head_norms
        layer = attention + 3 * width * self.mlp_size + norms
        ends = (1 if self.tied else 2) * self.vocab_size * width
        return self.num_layers * layer + ends + width

    @property
    def download_bytes(self) -> int:
        """What is fetched and kept on disk."""
        return round(self.num_parameters * self.bits / 8)

    def memory_bytes(self, *, on_gpu: bool) -> int:
        """What it takes with `CONTEXT` tokens: weights packed on a GPU, float32 on a CPU."""
        cache = 2 * self.num_layers * self.num_kv_heads * self.head_dim * CONTEXT
        if on_gpu:
            return self.download_bytes + 2 * cache
        return 4 * self.num_parameters + 4 * cache


def _qwen3(
    size: str, hidden_size: int, num_layers: int, num_heads: int, mlp_size: int, *, tied: bool
) -> Suggestion:
    """4-bit weights in groups of 64, each with a 16-bit scale and bias."""
    return Suggestion(
        model=f"mlx-community/Qwen3-{size}-4bit",
        model_type="qwen3",
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=8,
        head_dim=128,
        mlp_size=mlp_size,
        vocab_size=151_936,
        tied=tied,
        head_norms=True,
        bits=4.5,
    )


def _smollm2(
    model: str, hidden_size: int, num_layers: int, num_heads: int, num_kv_heads: int, mlp_size: int
) -> Suggestion:
    """8-bit weights in blocks of 32 with a 16-bit scale."""
    return Suggestion(
        model=model,
        model_type="llama",
        hidden_size=hidden_size,
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=64,
        mlp_size=mlp_size,
        vocab_size=49_152,
        tied=True,
        head_norms=False,
        bits=8.5,
    )


# The larger, the better. MLX's packed kernels are slow on a CPU, so a folder of 4-bit weights is
# for GPUs.
FOR_GPU = (
    _qwen3("0.6B", 1024, 28, 16, 3072, tied=True),
    _qwen3("1.7B", 2048, 28, 16, 6144, tied=True),
    _qwen3("4B", 2560, 36, 32, 9728, tied=True),
    _qwen3("8B", 4096, 36, 32, 12288, tied=False),
    _qwen3("14B", 5120, 40, 40, 17408, tied=False),
)
FOR_CPU = (
    _smollm2(
        "HuggingFaceTB/SmolLM2-360M-Instruct-GGUF/smollm2-360m-instruct-q8_0.gguf",
        960,
        32,
        15,
        5,
        2560,
    ),
    _smollm2(
        "bartowski/SmolLM2-1.7B-Instruct-GGUF/SmolLM2-1.7B-Instruct-Q8_0.gguf",
        2048,
        24,
        32,
        32,
        8192,
    ),
)


def best_for(memory_bytes: int, *, on_gpu: bool) -> Suggestion | None:
    """The best model that fits into so much memory with `CONTEXT` tokens; None where none does."""
    fitting = [
        model
        for model in (FOR_GPU if on_gpu else FOR_CPU)
        if model.memory_bytes(on_gpu=on_gpu) <= memory_bytes
    ]
    return fitting[-1] if fitting else None


def suggestion() -> str | None:
    """One line on a better model for this machine; None where its memory allows none."""
    import mlx.core as mx

    from mtplx.loading.memory import memory_limit_bytes

    on_gpu, limit = mx.metal.is_available(), memory_limit_bytes()
    best = best_for(limit, on_gpu=on_gpu)
    if best is None:
        return None
    return (
        f"The memory of this machine ({limit / 1e9:.0f} GB for models) holds a better and slower "
        f"one: `mtplx chat --model {best.model}` ({best.download_bytes / 1e9:.1f} GB to fetch, "
        f"{best.memory_bytes(on_gpu=on_gpu) / 1e9:.1f} GB of memory, no drafting)."
    )

"""Trains the tiny Qwen 3.5 hybrid that lies beside this file, with its MTP head.

    torchrun --nproc-per-node 2 -m tests.assets.train_tiny_hybrid FOLDER --minutes 45

The text is the Python standard library's own source code. Trunk and head are trained together:
the trunk on the next token; the head on the trunk's own distribution one token further, from the
trunk's hidden states and then once more from what it made of them itself, as it drafts. Afterwards
the final norms are spread (see `spread`), and the result is written in the layout of the published
checkpoints. It needs torch, transformers and tokenizers. Each process computes on one thread, and
all share their gradients.
"""

import argparse
import copy
import hashlib
import json
import math
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import tokenizers
import torch
import torch.distributed as processes
import torch.nn.functional as F
from safetensors.torch import save_file
from tokenizers import decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers.models.qwen3_5.configuration_qwen3_5 import Qwen3_5TextConfig
from transformers.models.qwen3_5.modeling_qwen3_5 import (
    Qwen3_5DecoderLayer,
    Qwen3_5RMSNorm,
    Qwen3_5TextModel,
)

VOCABULARY, END = 512, "<|endoftext|>"
ROWS, TOKENS = 4, 256  # of a process's batch
DRAFT_STEPS = 2
TOP_RATE = 4e-3
HEAD_WEIGHT = 0.5  # of the head's loss, in the sum
SKIPPED = {"test", "tests", "idlelib", "site-packages", "dist-packages", "lib2to3", "turtledemo"}


def configuration() -> Qwen3_5TextConfig:
    """Three gated-delta layers and one of attention."""
    return Qwen3_5TextConfig(
        vocab_size=VOCABULARY,
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=32,
        linear_num_key_heads=2,
        linear_num_value_heads=4,
        linear_key_head_dim=64,
        linear_value_head_dim=64,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=VOCABULARY - 1,
        rope_parameters={
            "rope_type": "default",
            "rope_theta": 10_000.0,
            "partial_rotary_factor": 0.25,
        },
    )


class Head(nn.Module):  # type: ignore[misc]  # torch is not type-checked here
    """The MTP head, its parameters named as in the checkpoints."""

    def __init__(self, config: Qwen3_5TextConfig) -> None:
        super().__init__()
        config = copy.deepcopy(config)
        config.layer_types = ["full_attention"]
        width, eps = config.hidden_size, config.rms_norm_eps
        self.fc = nn.Linear(2 * width, width, bias=False)
        self.pre_fc_norm_embedding = Qwen3_5RMSNorm(width, eps)
        self.pre_fc_norm_hidden = Qwen3_5RMSNorm(width, eps)
        self.layers = nn.ModuleList([Qwen3_5DecoderLayer(config, 0)])
        self.norm = Qwen3_5RMSNorm(width, eps)

    def forward(self, embedding: Tensor, hidden: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        """[B, T, D] from the next tokens' embeddings and the hidden states [B, T, D]."""
        halves = [self.pre_fc_norm_embedding(embedding), self.pre_fc_norm_hidden(hidden)]
        x = self.fc(torch.cat(halves, dim=-1))
        return self.norm(self.layers[0](x, position_embeddings=angles))


class Hybrid(nn.Module):  # type: ignore[misc]  # as above
    """Trunk and head."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = Qwen3_5TextModel(configuration())
        self.mtp = Head(configuration())
        for module in self.mtp.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)

    def project(self, hidden: Tensor) -> Tensor:
        """Logits [B, T, V]; the embedding is tied."""
        return F.linear(hidden, self.trunk.embed_tokens.weight)

    def forward(self, ids: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Logits [B, T, V] of the trunk, and of each draft step for its first rows.

        Row i of draft step s predicts token i + s + 2, as row i + s + 1 of the trunk does.
        """
        hidden = self.trunk(input_ids=ids, use_cache=False).last_hidden_state
        embedding = self.trunk.embed_tokens(ids)
        drafts, recycled = [], hidden
        for step in range(1, DRAFT_STEPS + 1):
            rows = ids.shape[1] - step
            places = torch.arange(rows)[None, None].expand(3, ids.shape[0], -1)
            angles = self.trunk.rotary_emb(embedding, places)
            recycled = self.mtp(embedding[:, step:], recycled[:, :rows], angles)
            drafts.append(self.project(recycled))
        return self.project(hidden), drafts


def losses(logits: Tensor, drafts: list[Tensor], ids: Tensor) -> tuple[Tensor, Tensor]:
    """Cross-entropy of the trunk with the text, and of the draft steps with the trunk."""
    logits = logits.float()
    own = F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    target = logits.detach().softmax(-1)
    steps = [
        -(target[:, step:] * draft.float().log_softmax(-1)).sum(-1).mean()
        for step, draft in enumerate(drafts, 1)
    ]
    return own, torch.stack(steps).mean()


def source_texts() -> tuple[list[str], list[str]]:
    """The library's modules to train on, and every fortieth of them, by name, held out."""
    root = Path(sysconfig.get_paths()["stdlib"])
    parts: tuple[list[str], list[str]] = ([], [])
    for file in sorted(root.rglob("*.py")):
        name = file.relative_to(root)
        if not SKIPPED.intersection(name.parts):
            held_out = hashlib.sha256(str(name).encode()).digest()[0] % 40 == 0
            parts[held_out].append(file.read_text(encoding="utf-8", errors="replace"))
    return parts


def make_tokenizer(texts: list[str]) -> tokenizers.Tokenizer:
    """Byte-level BPE."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.train_from_iterator(
        texts,
        trainers.BpeTrainer(
            vocab_size=VOCABULARY - 1,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    backend.add_special_tokens([END])
    return backend


def encoded(backend: tokenizers.Tokenizer, texts: list[str]) -> np.ndarray:
    """One run of token ids, the texts apart by the end token."""
    ids = [[*e.ids, VOCABULARY - 1] for e in backend.encode_batch(texts)]
    return np.concatenate([np.array(part, dtype=np.int64) for part in ids])


def batches(ids: np.ndarray, seed: int) -> Iterator[Tensor]:
    """Random windows [ROWS, TOKENS] without end."""
    rng = np.random.default_rng(seed)
    while True:
        starts = rng.integers(0, len(ids) - TOKENS, size=ROWS)
        yield torch.from_numpy(np.stack([ids[start : start + TOKENS] for start in starts]))


def make_optimisers(model: Hybrid) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for vectors, convolutions and the embedding."""
    matrices: list[Tensor] = []
    others: list[Tensor] = []
    for name, parameter in model.named_parameters():
        hidden = parameter.ndim == 2 and "embed_tokens" not in name
        (matrices if hidden else others).append(parameter)
    muon = torch.optim.Muon(matrices, lr=0.0, adjust_lr_fn="match_rms_adamw")
    return [muon, torch.optim.AdamW(others, lr=0.0, betas=(0.9, 0.95), weight_decay=0.0)]


def rate(progress: float) -> float:
    """The learning rate at a share of the time: up over 1 %, level, and down from a half on."""
    return TOP_RATE * min(progress / 0.01, 1.0, 2.02 * (1.01 - progress))


def share(model: Hybrid, progress: float) -> float:
    """Average the gradients over all processes, and how far each thinks that it is."""
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    flat = torch.cat([*(g.flatten() for g in gradients), torch.tensor([progress])])
    processes.all_reduce(flat)
    flat /= processes.get_world_size()
    means = flat[:-1].split([g.numel() for g in gradients])
    for gradient, mean in zip(gradients, means, strict=True):
        gradient.copy_(mean.view_as(gradient))
    return float(flat[-1])


def train(model: Hybrid, ids: np.ndarray, minutes: float, folder: Path) -> int:
    """Train until the time is over; return the number of steps."""
    rank = processes.get_rank()
    optimisers, source = make_optimisers(model), batches(ids, seed=rank)
    started = time.monotonic()
    step, progress = 0, 0.0
    while progress < 1:
        for optimiser in optimisers:
            for group in optimiser.param_groups:
                group["lr"] = rate(progress)
        batch = next(source)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits, drafts = model(batch)
        own, ahead = losses(logits, drafts, batch)
        model.zero_grad()
        (own + HEAD_WEIGHT * ahead).backward()
        progress = share(model, (time.monotonic() - started) / (60 * minutes))
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimiser in optimisers:
            optimiser.step()
        step += 1
        if step % 50 == 0 and rank == 0:
            print(f"{step} ({progress:.0%}): trunk {own:.3f}, head {ahead:.3f}", flush=True)
            save_file(named_tensors(model), folder / "unfinished.safetensors")
    return step


def named_tensors(model: Hybrid) -> dict[str, Tensor]:
    """The weights, named and typed as in the published checkpoints."""
    tensors = {}
    for name, value in model.state_dict().items():
        renamed = name.replace("trunk.", "model.language_model.", 1)
        dtype = torch.float32 if name.endswith("A_log") else torch.bfloat16
        tensors[renamed] = value.detach().to(dtype).contiguous()
    return tensors


def spread(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same model with final norms whose weights differ, as those of large models do.

    A little training leaves a final norm almost flat, and then either side of it feeds a head
    as well as the other. Here channel c of what the norms give out is multiplied by s_c, and what
    reads it divides by s_c: exactly so in the output layer, which is the embedding no longer, and
    up to a factor for each row in the head's norm of hidden states.
    """
    draw = torch.Generator().manual_seed(1)
    width = tensors["mtp.norm.weight"].shape[0]
    s = torch.exp(0.8 * torch.randn(width, generator=draw))
    s /= s.square().mean().sqrt()
    embedding = tensors["model.language_model.embed_tokens.weight"]
    changed = {"lm_head.weight": (embedding.float() / s).to(embedding.dtype)}
    for name, factor in (
        ("model.language_model.norm.weight", s),
        ("mtp.norm.weight", s),
        ("mtp.pre_fc_norm_hidden.weight", 1 / s),
    ):
        stored = tensors[name]  # w for a factor of 1 + w
        changed[name] = ((1 + stored.float()) * factor - 1).to(stored.dtype)
    return tensors | changed


def save_configuration(backend: tokenizers.Tokenizer, folder: Path) -> None:
    """config.json and the tokenizer's files."""
    text = configuration().to_diff_dict()
    text |= {"full_attention_interval": 4, "mtp_num_hidden_layers": 1, "dtype": "bfloat16"}
    text["tie_word_embeddings"] = False
    config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "tie_word_embeddings": False,
        "text_config": text,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1, sort_keys=True) + "\n")
    backend.save(str(folder / "tokenizer.json"))
    settings = {"eos_token": END, "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n")


@torch.no_grad()  # type: ignore[untyped-decorator]  # as above
def report(model: Hybrid, ids: np.ndarray) -> dict[str, float]:
    """What held-out text says: losses, and how often a draft step and the trunk agree."""
    own, agreed, source = [], [], batches(ids, seed=1)
    for _ in range(16):
        batch = next(source)
        logits, drafts = model(batch)
        own.append(losses(logits, drafts, batch)[0].item())
        best = logits.argmax(-1)
        matches = [(best[:, s:] == d.argmax(-1)).float().mean() for s, d in enumerate(drafts, 1)]
        agreed.append([float(match) for match in matches])
    rates = np.mean(agreed, axis=0)
    figures = {"perplexity_per_token": math.exp(np.mean(own))}
    return figures | {f"step_{i}_agrees": round(float(r), 4) for i, r in enumerate(rates, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--minutes", type=float, default=30)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    torch.manual_seed(0)
    processes.init_process_group("gloo")
    texts, held_out = source_texts()
    backend = make_tokenizer(texts)
    ids, held_out_ids = encoded(backend, texts), encoded(backend, held_out)
    model = Hybrid()
    steps = train(model, ids, options.minutes, options.folder)
    if processes.get_rank() == 0:
        save_configuration(backend, options.folder)
        tensors = spread(named_tensors(model))
        save_file(tensors, options.folder / "model.safetensors", {"format": "pt"})
        seen = steps * ROWS * TOKENS * processes.get_world_size()
        size = sum(p.numel() for p in model.parameters())
        made = {"parameters": size, "steps": steps, "tokens_seen": seen}
        print(json.dumps(made | report(model, held_out_ids)))
    processes.destroy_process_group()


if __name__ == "__main__":
    main()

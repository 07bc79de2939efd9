"""The replies that a head is measured on."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from mtplx.errors import TrainingError
from mtplx.loading.load import LoadedModel, load
from mtplx.models.llama import LlamaTarget
from mtplx.prompts import shipped_prompts
from mtplx.text.prompt import encode_chat
from mtplx.text.template import Message
from mtplx.training.acceptance import HeldOut
from mtplx.training.held_out import CLASSES, held_out_replies
from mtplx.training.pipeline import read_ordinary_text
from mtplx.training.plan import Plan
from tests.training.small import small_plan


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> LoadedModel:
    return load(tiny_model)


def in_folder(folder: Path, **changes: object) -> Plan:
    folder.mkdir(exist_ok=True)
    return small_plan(folder, Path("tiny.gguf"), **changes)


def replies_of(model: LoadedModel, plan: Plan, context_length: int | None = None) -> HeldOut:
    target = model.target
    assert isinstance(target, LlamaTarget)
    dims = replace(target.dims, context_length=context_length or target.context_length)
    return held_out_replies(plan, model, replace(target, dims=dims), lambda done, total: None)


def test_replies_are_to_the_shipped_prompts(model: LoadedModel, tmp_path: Path) -> None:
    """Each begins with its prompt as a chat has it, and drafting starts at the prompt's end."""
    held_out = replies_of(model, in_folder(tmp_path / "run"))
    assert set(held_out) == {(kind, t) for kind in CLASSES for t in (0.0, 0.7)}
    for (kind, _), replies in held_out.items():
        asked = [p.text for p in shipped_prompts() if p.kind == kind][:2]
        for text, reply in zip(asked, replies, strict=True):
            prompt = encode_chat(model.tokenizer, [Message("user", text)])
            assert reply.passage.token_ids[: reply.first + 1].tolist() == prompt
            assert 1 <= len(reply.passage.token_ids) - len(prompt) <= 12
            assert len(reply.best) == len(reply.log_total)
            assert len(reply.best) == len(reply.passage.token_ids) - reply.first


def test_replies_are_written_once(model: LoadedModel, tmp_path: Path) -> None:
    """What is in the folder is used again."""
    plan = in_folder(tmp_path / "run")
    once = replies_of(model, plan)
    written = {path: path.stat().st_mtime_ns for path in plan.folder.glob("held-out-*.npz")}
    assert len(written) == 6
    again = replies_of(model, plan)
    assert {path: path.stat().st_mtime_ns for path in written} == written
    for key, replies in once.items():
        for one, other in zip(replies, again[key], strict=True):
            assert np.array_equal(one.passage.token_ids, other.passage.token_ids)
            assert one.first == other.first


def test_prompts_that_leave_no_room_are_left_out(model: LoadedModel, tmp_path: Path) -> None:
    """A small context measures on what fits, and not at all on a class of which nothing fits."""
    plan = in_folder(tmp_path / "run", prompts_per_class=None)
    shortest = {
        kind: min(
            len(encode_chat(model.tokenizer, [Message("user", prompt.text)]))
            for prompt in shipped_prompts()
            if prompt.kind == kind
        )
        for kind in CLASSES
    }
    *fitting, (context, none_fits) = sorted((n + 12, kind) for kind, n in shortest.items())
    held_out = replies_of(model, plan, context_length=context - 1)
    assert {kind for kind, _ in held_out} == {kind for _, kind in fitting}
    assert none_fits not in {kind for kind, _ in held_out}
    for replies in held_out.values():
        assert replies
        assert all(len(reply.passage.token_ids) < context for reply in replies)


def test_too_little_text_is_a_training_error(model: LoadedModel, tmp_path: Path) -> None:
    """Text files that fill no passage are not left out in silence."""
    short = tmp_path / "short.txt"
    short.write_text("Not enough.")
    plan = in_folder(tmp_path / "run", texts=(short,))
    target = model.target
    assert isinstance(target, LlamaTarget)
    with pytest.raises(TrainingError, match="fewer than 48 tokens"):
        read_ordinary_text(plan, model, target, lambda done, total: None)


def test_ordinary_text_is_read_as_far_as_it_is_wanted(model: LoadedModel, tmp_path: Path) -> None:
    """So many whole passages, in chunks; none at all where none is wanted."""
    from mtplx.training.passages_file import read_passages
    from mtplx.training.run_folder import TEXT

    target = model.target
    assert isinstance(target, LlamaTarget)
    for wanted, num_passages in ((47, 0), (600, 12), (10**6, None)):
        plan = in_folder(tmp_path / f"run {wanted}", text_tokens=wanted)
        read_ordinary_text(plan, model, target, lambda done, total: None)
        passages = read_passages(sorted(plan.folder.glob(TEXT)))
        total = len((tmp_path / "text.txt").read_bytes()) // 48
        assert len(passages) == (total if num_passages is None else num_passages)
        assert all(len(passage.token_ids) == 48 for passage in passages)

"""The run behind `mtplx train-head`: read text, write text, start, train, measure, store.

Every part leaves its result in the run's folder and is skipped when that is there, so a run that
was interrupted goes on where it stopped.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from mtplx.errors import TrainingError
from mtplx.files import accessing, write_atomically
from mtplx.loading.fingerprint import fingerprint
from mtplx.loading.head_file import read_head, write_head
from mtplx.loading.load import LoadedModel
from mtplx.models.head import HeadWeights
from mtplx.models.llama import LlamaTarget
from mtplx.models.llama_like import own_trunk
from mtplx.models.shortlist import Shortlist, make_shortlist
from mtplx.training.acceptance import HeldOut, Measured, measure_judged
from mtplx.training.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from mtplx.training.crew import write_own_text
from mtplx.training.engine import make_gradients, require
from mtplx.training.examples import frequent_ids, make_example
from mtplx.training.framing import chat_framing
from mtplx.training.held_out import held_out_replies
from mtplx.training.initialise import initial_parameters
from mtplx.training.lesson import Lesson, Report, Tell, learn
from mtplx.training.optimiser import begin
from mtplx.training.own_text import Passage, read_texts
from mtplx.training.passages_file import read_passages, write_passages
from mtplx.training.plan import Plan
from mtplx.training.prompts import text_windows
from mtplx.training.run_folder import CHECKPOINT, HEAD, opened_folder, passage_paths, text_path
from mtplx.training.worker import CACHE_BYTES

INITIAL_WINDOWS = 160
WINDOW = 256
TEXTS_PER_CHUNK = 64

Results = dict[tuple[str, float], Measured]


@dataclass(frozen=True, slots=True)
class Trained:
    """A finished run: the head's file, held-out acceptance, and the shifted control.

    control: acceptance where the trunk's distribution is taken one position late.
    """

    head: Path
    results: Results
    control: Measured

    def lines(self) -> list[str]:
        """The results as a table, per position and as tokens per round for k = 1, 2, …"""
        rows = [f"{'held-out':<16} accepted per position      tokens per round, k = 1…"]
        for (kind, temperature), m in self.results.items():
            each = " ".join(f"{x:.3f}" for x in m.per_position)
            rounds = " ".join(f"{x:.2f}" for x in m.tokens_per_round)
            rows.append(f"{kind:<9} T={temperature:<4g} {each}    {rounds}")
        each = " ".join(f"{x:.3f}" for x in self.control.per_position)
        return [*rows, f"control, targets shifted by one: {each} (must be near zero)"]


def run(plan: Plan, model: LoadedModel, tell: Tell) -> Trained:
    """Train a head for `model`, or go on with what the plan's folder holds.

    Raises UsageError for an engine that is not installed, TrainingError if it cannot train,
    FileAccessError for a folder or disk that will not have it.
    A KeyboardInterrupt loses at most the chunks of text that were being written.
    """
    require(plan.engine)
    target = _trunk(plan, model)
    mx.set_cache_limit(CACHE_BYTES)

    def telling(what: str) -> Callable[[int, int], None]:
        return lambda done, total: tell(Report(what, done, total))

    with opened_folder(plan, fingerprint(model.path)):
        # What takes minutes comes before what takes most of an hour, with the mistakes it meets.
        read_ordinary_text(plan, model, target, telling("reading ordinary text"))
        held_out = held_out_replies(plan, model, target, telling("writing held-out replies"))
        mx.clear_cache()  # the processes that write text need the memory
        write_own_text(plan, target, telling("writing its own text"))
        checkpoint = _trained(plan, target, held_out, tell)
        return _finished(plan, model, target, held_out, checkpoint)


def _trunk(plan: Plan, model: LoadedModel) -> LlamaTarget:
    """The model as what a head can be trained for, or an error before any work is done."""
    target = own_trunk(model.target)
    if target is None:
        raise TrainingError(f"{plan.model} is not a llama-type model; heads are trained for those.")
    if target.context_length < plan.passage_length:
        raise TrainingError(
            f"{plan.model} has a context of {target.context_length} tokens; training takes "
            f"passages of {plan.passage_length}."
        )
    chat_framing(model.tokenizer)
    return target


def finish(head: Path, path: Path) -> None:
    """Put the head of a run where it will be found."""
    with accessing("read", head):
        content = head.read_bytes()
    write_atomically(path, content)


def read_ordinary_text(
    plan: Plan, model: LoadedModel, target: LlamaTarget, tell: Callable[[int, int], None]
) -> None:
    """Hidden states of the plan's text files, some windows a chunk. tell counts tokens."""

    def encode(text: str) -> list[int]:
        return model.tokenizer.encode(text, parse_special=False)

    length = plan.passage_length
    wanted = plan.text_tokens // length
    windows = text_windows(plan.texts, encode, length, plan.seed)
    for number, start in enumerate(range(0, wanted, TEXTS_PER_CHUNK)):
        count = min(TEXTS_PER_CHUNK, wanted - start)
        chunk = [window for window, _ in zip(windows, range(count), strict=False)]
        path = text_path(plan.folder, number)
        if not chunk and not number and plan.texts:
            raise TrainingError(
                f"The text files hold fewer than {length} tokens, too few to train on. Give more, "
                "or --text-tokens 0."
            )
        if not chunk:
            return
        if path.exists():
            continue
        passages: list[Passage] = []
        for i in range(0, len(chunk), 8):
            passages += read_texts(target, chunk[i : i + 8], "text")
            tell(min(start + i + 8, wanted) * length, wanted * length)
        write_passages(path, passages)


def _trained(plan: Plan, target: LlamaTarget, held_out: HeldOut, tell: Tell) -> Checkpoint:
    """The plan's last checkpoint, trained until there are no stages left."""
    path = plan.folder / CHECKPOINT
    checkpoint = read_checkpoint(path) if path.exists() else None
    if checkpoint is not None and checkpoint.stage >= len(plan.stages):
        return checkpoint
    passages = read_passages(passage_paths(plan))
    if checkpoint is None:
        checkpoint = _start(plan, target, passages)
        write_checkpoint(path, checkpoint)
    shortlist = make_shortlist(target.lm_head, checkpoint.shortlist)
    examples = []
    for i, passage in enumerate(passages):
        examples.append(make_example(passage, shortlist))
        tell(Report("preparing examples", i + 1, len(passages)))
    gradients = make_gradients(plan.engine, target, shortlist)
    lesson = Lesson(plan, target, shortlist, gradients, examples, held_out)
    return learn(lesson, checkpoint, tell)


def _start(plan: Plan, target: LlamaTarget, passages: list[Passage]) -> Checkpoint:
    shortlist = frequent_ids(passages, target.vocab_size, plan.shortlist_size)
    windows = [p.token_ids[:WINDOW].tolist() for p in passages[:INITIAL_WINDOWS]]
    parameters = initial_parameters(target, windows, num_blocks=plan.num_blocks)
    return Checkpoint(parameters, begin(parameters), shortlist, 0, 0)


def _finished(
    plan: Plan,
    model: LoadedModel,
    target: LlamaTarget,
    held_out: HeldOut,
    checkpoint: Checkpoint,
) -> Trained:
    """The head as a file, measured as it is read back: rounded to what is stored."""
    path = plan.folder / HEAD
    metadata = {"trunk": fingerprint(model.path), "model": plan.model}
    write_head(path, checkpoint.parameters, target.dims, checkpoint.shortlist, metadata)
    head = read_head(path, target.dims).weights
    shortlist = make_shortlist(target.lm_head, checkpoint.shortlist)
    results = {
        key: measure_judged(target, head, shortlist, replies, key[1])
        for key, replies in held_out.items()
    }
    return Trained(path, results, _control(target, head, shortlist, held_out))


def _control(
    target: LlamaTarget, head: HeadWeights, shortlist: Shortlist, held_out: HeldOut
) -> Measured:
    greedy = [key for key in held_out if key[1] == 0]
    key = next((key for key in greedy if key[0] == "code"), greedy[0] if greedy else None)
    replies = held_out[key] if key is not None else []
    return measure_judged(target, head, shortlist, replies, 0.0, shift=1)

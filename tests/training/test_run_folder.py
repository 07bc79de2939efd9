"""A run's folder serves one process and one set of options."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mtplx.errors import FileAccessError, TrainingError
from mtplx.training.plan import Plan, plan_from_json
from mtplx.training.run_folder import (
    CHECKPOINT,
    chunk_path,
    digest_texts,
    opened_folder,
    passage_paths,
    text_path,
)
from tests.training.small import small_plan

ROOT = Path(__file__).parents[2]
EVERY_KIND = ("own-00000.npz", "text-00000.npz", "held-out-chat-0.npz", CHECKPOINT)


def plan_in(tmp_path: Path, **changes: Any) -> Plan:
    return small_plan(tmp_path / "run", tmp_path / "tiny.gguf", **changes)


def begin(plan: Plan, *names: str, trunk: str = "aa") -> None:
    """A run that has got as far as these files."""
    with opened_folder(plan, trunk):
        for name in names:
            (plan.folder / name).write_bytes(b"")


def refusal(plan: Plan, trunk: str = "aa") -> str:
    with pytest.raises(TrainingError) as caught, opened_folder(plan, trunk):
        pass
    return str(caught.value)


def test_the_same_options_go_on(tmp_path: Path) -> None:
    """Every kind of file is left where it is."""
    begin(plan_in(tmp_path), *EVERY_KIND)
    with opened_folder(plan_in(tmp_path), "aa"):
        assert {p.name for p in (tmp_path / "run").iterdir()} >= set(EVERY_KIND)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"shortlist_size": 128}, "--shortlist 64, now 128"),
        ({"num_blocks": 2}, "--blocks 1, now 2"),
        ({"seed": 2}, "--seed 1, now 2"),
        ({"one_step": 99}, "--steps 14, now 99"),
        ({"unrolled": 99}, "--unrolled-steps 8, now 99"),
        ({"own_tokens": 10_000}, "--own-tokens 1152, now 10368"),
        ({"text_tokens": 900}, "--text-tokens 600, now 900"),
        ({"texts": ()}, "--text "),
        ({"passage_length": 49}, "length 48, now 49"),
        ({"num_anchors": 25}, "anchors 24, now 25"),
    ],
)
def test_other_options_do_not_go_on_with_a_training(
    tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    """Each option that the result follows from is named with its old and its new value."""
    begin(plan_in(tmp_path), *EVERY_KIND)
    said = refusal(plan_in(tmp_path, **changes))
    assert told in said
    assert str(tmp_path / "run" / CHECKPOINT) in said
    assert "another --folder" in said


def test_text_of_two_engines_is_not_mixed(tmp_path: Path) -> None:
    """A run that is still writing goes on with the engine that it was begun with."""
    begin(plan_in(tmp_path), "own-00000.npz")
    said = refusal(plan_in(tmp_path, engine="torch"))
    assert "--engine mlx, now torch" in said


def test_whole_text_serves_either_engine(tmp_path: Path) -> None:
    """Training goes on with the other one, and back, and what wrote the text is remembered."""
    own = [f"own-{number:05d}.npz" for number in range(3)]
    begin(plan_in(tmp_path, engine="torch"), *EVERY_KIND, *own)
    begin(plan_in(tmp_path, engine="mlx"))
    begin(plan_in(tmp_path, engine="torch"))
    begin(plan_in(tmp_path, engine="mlx"))
    (tmp_path / "run" / own[1]).unlink()
    assert "--engine torch, now mlx" in refusal(plan_in(tmp_path, engine="mlx"))
    begin(plan_in(tmp_path, engine="torch"))


def test_another_model_does_not_go_on_with_anything(tmp_path: Path) -> None:
    """Text, held-out replies and training are all of one trunk."""
    begin(plan_in(tmp_path), *EVERY_KIND)
    said = refusal(plan_in(tmp_path), trunk="bb")
    assert said.count("model aa, now bb") == len(EVERY_KIND)


def test_text_that_has_changed_is_another_text(tmp_path: Path) -> None:
    """What is in the files counts, not what they are called."""
    begin(plan_in(tmp_path), "text-00000.npz")
    (tmp_path / "text.txt").write_text("Something else altogether.")
    assert "--text " in refusal(plan_in(tmp_path))


def test_options_that_no_file_follows_from_may_change(tmp_path: Path) -> None:
    """Text that is there serves a head of another size, as long as training has not begun."""
    begin(plan_in(tmp_path), *EVERY_KIND[:3])
    begin(plan_in(tmp_path, num_blocks=2, shortlist_size=99, one_step=5, own_tokens=9999))
    begin(plan_in(tmp_path, num_workers=7, steps_per_checkpoint=3, steps_per_measurement=2))


def test_deleting_what_is_named_is_a_way_out(tmp_path: Path) -> None:
    """Without the checkpoint the text is used again."""
    begin(plan_in(tmp_path), *EVERY_KIND)
    changed = plan_in(tmp_path, num_blocks=2)
    assert "own-" not in refusal(changed)
    (tmp_path / "run" / CHECKPOINT).unlink()
    begin(changed, CHECKPOINT)
    assert "--blocks 2, now 1" in refusal(plan_in(tmp_path))


def test_a_refusal_changes_nothing(tmp_path: Path) -> None:
    """After a refusal the options as before still go on."""
    begin(plan_in(tmp_path), *EVERY_KIND)
    for _ in range(2):
        refusal(plan_in(tmp_path, seed=2))
    begin(plan_in(tmp_path))


def test_files_that_nothing_is_known_of_are_not_used(tmp_path: Path) -> None:
    """A folder with text of unknown origin is refused."""
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "own-00000.npz").write_bytes(b"")
    assert "unknown options" in refusal(plan_in(tmp_path))


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 1}', "null"])
def test_a_damaged_plan_is_told_of(tmp_path: Path, content: str) -> None:
    """One that cannot be read is an error of its own."""
    begin(plan_in(tmp_path), *EVERY_KIND)
    (tmp_path / "run" / "plan.json").write_text(content)
    assert "does not say what the files beside it were made with" in refusal(plan_in(tmp_path))


def test_a_plan_of_another_version_is_not_gone_on_with(tmp_path: Path) -> None:
    """Where the same options meant something else, nothing is known of the files."""
    begin(plan_in(tmp_path), *EVERY_KIND)
    path = tmp_path / "run" / "plan.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 0}))
    assert "unknown options" in refusal(plan_in(tmp_path))


def test_two_processes_cannot_train_in_one_folder(tmp_path: Path) -> None:
    """The second is told so, and the folder is free when the first is gone."""
    plan = plan_in(tmp_path)
    script = (
        "import sys; from mtplx.training.plan import plan_from_json;"
        "from mtplx.training.run_folder import opened_folder\n"
        "with opened_folder(plan_from_json(sys.argv[1]), 'aa'):\n"
        "    print('open', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, plan.to_json()],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"open\n"
        assert "Another process is training" in refusal(plan)
        other.kill()
        other.wait()
        begin(plan)


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    """Half-written files do not pile up; other people's files stay."""
    folder = tmp_path / "run"
    for name in (".own-00003.npz-abc", f".{CHECKPOINT}-x", ".plan.json-1", ".mine"):
        (folder / name).mkdir(parents=True)
    begin(plan_in(tmp_path))
    assert {p.name for p in folder.iterdir()} == {".mine", ".lock", "plan.json"}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"caf\xe9 au lait", "not UTF-8 text"),
        (b"caf\xc3", "not UTF-8 text"),
        (bytes(range(256)), "not UTF-8 text"),
    ],
)
def test_text_in_another_encoding_is_refused(tmp_path: Path, content: bytes, told: str) -> None:
    """Before any work is done, with the file's name."""
    path = tmp_path / "odd.txt"
    path.write_bytes(content)
    said = refusal(plan_in(tmp_path, texts=(path,)))
    assert told in said
    assert "odd.txt" in said


def test_text_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """A missing file is a file error, a folder a training error."""
    with pytest.raises(FileAccessError, match=r"Cannot read .*gone.txt: there is no such file"):
        digest_texts([tmp_path / "gone.txt"])
    with pytest.raises(TrainingError, match="is not a file"):
        digest_texts([tmp_path])


def test_where_one_text_ends_matters(tmp_path: Path) -> None:
    """The same characters in other files are another text, and so are they in another order."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("ab")
    two.write_text("c")
    before = digest_texts([one, two])
    assert digest_texts([two, one]) != before
    one.write_text("a")
    two.write_text("bc")
    assert digest_texts([one, two]) != before


def test_a_folder_that_cannot_be_made_is_a_file_error(tmp_path: Path) -> None:
    """A file in the way is named."""
    (tmp_path / "taken").write_text("")
    plan = replace(plan_in(tmp_path), folder=tmp_path / "taken" / "run")
    with pytest.raises(FileAccessError, match="Cannot create the folder"), opened_folder(plan, ""):
        pass


def test_a_plan_goes_to_another_process_whole(tmp_path: Path) -> None:
    """As one line, whatever its paths hold."""
    plan = plan_in(tmp_path, texts=(Path("ä\n b.txt"), Path("c")))
    line = plan.to_json()
    assert "\n" not in line
    assert plan_from_json(line) == plan


def test_the_text_of_a_plan_is_no_more_than_it_asks_for(tmp_path: Path) -> None:
    """Chunks of a longer run that are still there are not trained on."""
    plan = plan_in(tmp_path)
    begin(plan, *(f"own-{n:05d}.npz" for n in range(9)), "text-00000.npz", "text-00001.npz")
    assert passage_paths(plan) == [
        *(chunk_path(plan.folder, number) for number in range(3)),
        *(text_path(plan.folder, number) for number in range(2)),
    ]

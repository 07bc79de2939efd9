"""`mtplx bench` as a command: what it refuses, and where its output goes."""

import json
from functools import partial
from pathlib import Path

import mlx.core as mx
import pytest

from mtplx.bench import ceiling, kernels, sampler_kernels
from mtplx.cli.app import run

TINY = ["--classes", "chat", "--prompts", "1", "--max-tokens", "2", "--rounds", "1"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--depths", "off,x"], "'x'"),
        (["--depths", ""], "''"),
        (["--classes", "chat,verse"], "'verse'"),
        (["--classes", ""], "''"),
        (["--rounds", "0"], "rounds is 0"),
        (["--prompts", "0"], "0 prompts"),
        (["--max-tokens", "0"], "max_tokens is 0"),
        (["--temp", "-1"], "temperature is -1.0"),
        (["--vs", "ollama"], "'ollama'"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused_before_a_model_is_looked_for(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line that names the value, exit code 2, and not a word about the missing model."""
    assert run(["bench", "--model", "/nowhere/model.gguf", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = [line for line in err.splitlines() if line.startswith("mtplx: ")]
    assert named in line
    assert "/nowhere" not in err


def test_a_model_that_is_not_there_is_told_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 1 and the path."""
    assert run(["bench", "--model", "/nowhere/model.gguf"]) == 1
    assert "/nowhere/model.gguf" in capsys.readouterr().err


@pytest.mark.skipif(mx.metal.is_available(), reason="this machine has a GPU")
def test_kernels_are_not_measured_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    """One line, exit code 1."""
    assert run(["bench", "--kernels"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "Metal GPU" in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("quiet", [False, True])
def test_kernels_are_told_in_a_table_and_in_json(
    quiet: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tables on standard error; by a clock that lets each product and step take a
    millisecond."""
    small = [("Q6_K", kernels.FORMATS["Q6_K"](1 << 20))]
    step = [("softmax", [sampler_kernels.STEPS["softmax"](4, 1000, 1)])]
    scripted = partial(kernels.measure_format, took=lambda _: 1e-3)
    scripted_step = partial(sampler_kernels.measure_step, took=lambda _: 1e-3)
    monkeypatch.setattr(kernels, "require_gpu", lambda: None)
    monkeypatch.setattr(kernels, "matrices", lambda: iter(small))
    monkeypatch.setattr(kernels, "measure_format", scripted)
    monkeypatch.setattr(sampler_kernels, "steps", lambda: iter(step))
    monkeypatch.setattr(sampler_kernels, "measure_step", scripted_step)
    monkeypatch.setattr(ceiling, "read_ceiling", lambda _: ceiling.ReadCeiling("gpu", 2e9, 2e9))
    assert run(["bench", "--kernels", *(["--json"] if quiet else [])]) == 0
    out, err = capsys.readouterr()
    (line,) = out.splitlines()
    told = json.loads(line)
    assert [(row["format"], row["rows"]) for row in told["kernels"]] == [
        ("Q6_K", rows) for rows in kernels.NUM_ROWS
    ]
    assert told["kernels"][0]["gb_per_s"] == pytest.approx(small[0][1].num_bytes / 1e6)
    assert [(row["step"], row["kernel"]) for row in told["sampler"]] == [
        ("softmax", kernels.OURS),
        ("softmax", kernels.MLX),
    ]
    assert told["sampler"][0]["gb_per_s"] == pytest.approx(6 * 4 * 1000 / 1e6)
    assert told["machine"]["read_gb_per_s"] == 2.0
    assert ("Q6_K" in err and "8 rows" in err) != quiet
    assert ("softmax" in err and "4 rows" in err) != quiet


@pytest.mark.slow
def test_the_last_line_of_output_is_json_and_tables_go_elsewhere(
    smollm2_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Standard output holds the JSON alone; tables and progress are on standard error."""
    assert run(["bench", "--model", str(smollm2_path), "--depths", "off", *TINY]) == 0
    out, err = capsys.readouterr()
    (line,) = out.splitlines()
    (row,) = json.loads(line)["rows"]
    assert (row["class"], row["arm"], row["num_tokens"]) == ("chat", "off", 2)
    assert "tokens/s" in err
    assert "GB/s" in err


@pytest.mark.slow
def test_json_alone_draws_no_table(smollm2_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --json standard error has at most the word that the machine is busy."""
    arguments = ["--depths", "off", "--vs", "mlx-lm", "--json", *TINY]
    assert run(["bench", "--model", str(smollm2_path), *arguments]) == 0
    out, err = capsys.readouterr()
    rows = json.loads(out)["rows"]
    assert [row["arm"] for row in rows] == ["off", "mlx-lm"]
    assert rows[1]["same_tokens_as_off"] == 1.0
    assert "tokens/s" not in err

"""Benchmarks of attacks: what is counted, which tools take part, and the tables."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from buttress.bench import attack_case, attack_tools
from buttress.bench.attack_case import PassCountingModel, ToolRun
from buttress.bench.attack_tools import TOOLS, installed_tools
from buttress.bench.attacks import (
    BENCHMARKS,
    BenchmarkCase,
    agreement_table,
    benchmark_cases,
    full_tables,
    strength_table,
    summary_table,
)
from buttress.bench.bare_passes import time_bare_passes, time_floor
from buttress.bench.models import BENCHMARK_MODELS
from buttress.cli.main import run_cli
from buttress.engine.fast_model import FastModel
from buttress.errors import UserError
from buttress.threats.norm_ball import NormBall
from conftest import images, small_net


def test_passes_are_counted_in_images() -> None:
    net, x = PassCountingModel(small_net()), images(6)[0]
    net(x)
    point = x[:4].requires_grad_(True)
    torch.autograd.grad(net(point).sum(), point)
    with torch.no_grad():
        net(x)
    assert net.forward_count == 6 + 4 + 6
    assert net.backward_count == 4


@pytest.mark.filterwarnings("ignore")  # other tools warn of their own age
@pytest.mark.parametrize("benchmark", BENCHMARKS)
def test_every_tool_that_is_installed_attacks(benchmark: str) -> None:
    model, (x, _) = small_net().eval().requires_grad_(False), images(6)
    y, threat = model(x).argmax(1), NormBall("Linf", 0.05)
    for name in installed_tools(benchmark):
        if "pyautoattack" in name or ("autoattack" in benchmark and "fast" not in name):
            continue  # minutes, and they have tests of their own
        output = TOOLS.get(name)(model, x, y, threat)
        assert output.x_adv.shape == x.shape
        assert not threat.excess(x, output.x_adv).any(), name
        if name != "bare passes":
            assert not torch.equal(output.x_adv, x), name


def test_pgd_runs_in_float32_and_takes_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (x, _) = small_net().eval().requires_grad_(False), images(6)
    y, made, select = model(x).argmax(1), list[FastModel](), FastModel.select

    def record(net: nn.Module, x: Tensor, *, images: int, passes: float) -> FastModel:
        assert (images, passes) == (6, 2 * attack_tools.STEPS + 2)  # that are predicted
        made.append(select(net, x))
        return made[-1]

    monkeypatch.setattr(FastModel, "select", record)
    monkeypatch.setattr(attack_tools, "BATCH", 4)
    for name, count in (("buttress pgd", 0), ("buttress pgd, fast model", 1)):
        output = TOOLS.get(name)(model, x, y, NormBall("Linf", 1.0))
        assert output.passes is not None
        assert output.passes[1] == attack_tools.STEPS, "also where an image is fooled"
        assert (output.setup_seconds > 0) == bool(count)
        assert len(made) == count
    assert {p.dtype for p in made[0].module.parameters()} <= {torch.float32}


def test_sampling_memory_takes_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter(range(100))

    def slow() -> float:
        time.sleep(0.02)
        return float(next(sizes))

    monkeypatch.setattr(attack_case, "resident_memory_mb", slow)
    monkeypatch.setattr(attack_case.PeakMemory, "EVERY", 0.01)
    with attack_case.PeakMemory() as watch:
        time.sleep(0.4)
    assert watch.growth_mb == 2, "at the start, soon after, and at the end"


def test_bare_seconds_grow_with_the_passes() -> None:
    model, x = small_net(), images(8)[0]
    assert time_bare_passes(model, x, 0, 0) == 0
    assert time_bare_passes(model, x, 2000, 0) > time_bare_passes(model, x, 2, 0) > 0


def test_the_floor_is_that_of_the_processes_of_an_attack() -> None:
    model, x = small_net().eval().requires_grad_(False), images(8)[0]
    assert time_floor(model, x, 0, 0, 1) == 0
    assert time_floor(model, x, 2000, 0, 1) > time_floor(model, x, 2, 0, 1) > 0
    assert time_floor(model, x, 10, 10) > 0  # as many as an attack uses by default


def cases(models: list[str], benchmarks: list[str], **settings: Any) -> list[BenchmarkCase]:
    threats, max_images = settings.pop("threats", ()), settings.pop("max_images", 10_000)
    return list(benchmark_cases(ToolRun(**settings), models, benchmarks, threats, max_images))


def test_cases_cover_models_benchmarks_and_threats() -> None:
    all_cases = cases(["small", "vit"], ["pgd", "autoattack"])
    assert len(all_cases) == 2 * (1 + 3)
    assert [[r.tool for r in c.tool_runs] for c in all_cases] == [
        installed_tools(c.benchmark) for c in all_cases
    ]
    assert "buttress pgd" in installed_tools("pgd")
    small = BENCHMARK_MODELS["small"]
    assert {run.images for run in all_cases[1].tool_runs} == {small.images}
    assert {run.images for run in all_cases[0].tool_runs} == {small.pgd_images}
    (few,) = cases(["small"], ["pgd"], max_images=397)  # all that there are
    assert few.tool_runs[0].images == 397
    with_checkpoint = cases(["small", "vit"], ["pgd"], images=5, checkpoint="a=b:c")
    assert with_checkpoint[0].tool_runs[0].images == 5
    assert with_checkpoint[0].tool_runs[0].checkpoint == "a=b:c"
    assert with_checkpoint[1].tool_runs[0].checkpoint is None
    with pytest.raises(UserError, match="a case must be one of"):
        cases(["small"], ["nonsense"])
    with pytest.raises(UserError, match="a model of the benchmarks must be one of"):
        cases(["nonsense"], ["pgd"])


def test_threats_that_were_given_replace_those_of_a_case() -> None:
    (only,) = cases(["small"], ["autoattack"], threats=["Linf:8/255"])
    assert {run.threat for run in only.tool_runs} == {"Linf:8/255"}


def test_an_attack_is_compared_only_in_norms_it_is_for() -> None:
    linf, l1, _ = cases(["small", "vit"], ["strength"])
    assert [run.tool for run in l1.tool_runs] == ["apgd-ce", "pgd 20", "pgd_dense_l1 20"]
    assert "fgsm" in {run.tool for run in linf.tool_runs}


def rows_of(benchmark: str, **tools: Mapping[str, object]) -> list[dict[str, Any]]:
    """Rows of a case of the ViT on four images."""
    title = BenchmarkCase(benchmark, (ToolRun("a", "vit", 4, "Linf:8/255"),)).title
    row = {"title": title, "benchmark": benchmark, "model": "vit", "threat": "Linf:8/255",
           "images": 4, "num_robust": 2, "forward": 22.0, "backward": 20.0, "seconds": 1.0,
           "bare_seconds": 0.5, "floor_seconds": 0.0, "peak_memory_mb": 10.0,
           "setup_seconds": 0.0}  # fmt: skip
    return [{**row, "tool": name.replace("_", " "), **values} for name, values in tools.items()]


def test_the_table_shows_ratios() -> None:
    rows = rows_of(
        "pgd",
        quick={"num_robust": 3, "setup_seconds": 0.25, "floor_seconds": 0.8},
        slow={"seconds": 4.0, "bare_seconds": 2.0},
        odd={"num_robust": 3, "seconds": 2.0, "bare_seconds": 0.0, "peak_memory_mb": 0.0},
    )
    text = "\n".join(full_tables(rows))
    assert "| odd | 2.00 | 0.500 |  |  |  | 0 | 3 (30 to 95%) |  |" in text, (
        "nothing to compare with"
    )
    assert "ViT mini, PGD-20, Linf:8/255, 4 images" in text
    assert (
        "| quick | 1.00 (0.25 of it setup) | 0.250 | 2.00 | 1.25 | 22, 20 | 10 | 3 (30 to 95%) |  |"
        in text
    )


def test_the_summary_shows_ratios_to_reference_and_floor() -> None:
    tools: dict[str, dict[str, object]] = {
        "pyautoattack": {"seconds": 10.0},
        "buttress_autoattack": {"seconds": 4.0, "floor_seconds": 3.2},
        "buttress_fast": {"seconds": 0.6, "floor_seconds": 0.3},
    }
    columns = "| model, threat model | pyautoattack | `autoattack` | `fast` |"
    header, _, row = summary_table(rows_of("autoattack", **tools))
    assert header == f"{columns} relative to the floor | robust images |"
    assert row.endswith("| 10 s | 4 s (0.40) | 1 s (0.06) | 1.25, 2.00 | 2, 2, 2 of 4 |")
    for values in tools.values():
        values.pop("floor_seconds", None)  # results of an earlier version
    assert next(summary_table(rows_of("autoattack", **tools))) == f"{columns} robust images |"


def test_the_tables_show_where_per_sample_results_differ_from_the_reference() -> None:
    rows = rows_of(
        "autoattack",
        pyautoattack={"robust_images": [1, 2]},
        same={"robust_images": [1, 2]},
        buttress_autoattack={"robust_images": [1, 3]},
    )
    agreement = {line.split(" | ")[0]: line.split(" | ")[-1] for line in full_tables(rows)}
    assert agreement["| same"] == "100.0% |"
    assert agreement["| buttress autoattack"] == "50.0% |"
    assert agreement["| pyautoattack"] == " |"
    assert list(agreement_table(rows))[2:] == ["| ViT mini, Linf:8/255 | 2/4 | 2/4 | 50.0% |"]


def test_the_table_of_single_attacks_shows_accuracy_and_passes() -> None:
    weak, strong = {"num_robust": 4, "forward": 2.0, "backward": 1.0}, {"num_robust": 1}
    rows = [*rows_of("strength", pgd=strong, fgsm=weak), *rows_of("pgd", a={})]
    assert list(strength_table(rows))[2:] == [
        "| Linf:8/255 | fgsm | 100.0% of 4 | 2 | 1 |",
        "| Linf:8/255 | pgd | 25.0% of 4 | 22 | 20 |",
    ]


@pytest.mark.parametrize("text", ["", "[]", '{"rows": 3}', '{"rows": [{"racer": "ART"}]}'])
def test_a_file_that_is_no_result_is_refused(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file.json").write_text(text)
    assert run_cli(["bench", "table", str(tmp_path / "file.json")]) == 2
    assert "must be a result file of `buttress bench`" in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_on_bundled_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The path of every case: a model is trained, tools run in processes, results are written."""
    monkeypatch.setenv("BUTTRESS_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "numbers.json"
    code = run_cli(
        ["bench", "attacks", "--models", "small", "--data", "digits", "--cases", "pgd",
         "--images", "8", "--repeats", "1", "--out", str(out)]
    )  # fmt: skip
    assert code == 0
    rows = json.loads(out.read_text())["rows"]
    by_name = {row["tool"]: row for row in rows}
    ours = by_name["buttress pgd"]
    assert (ours["forward"], ours["backward"]) == (22, 20)
    assert by_name["bare passes"]["backward"] == 20
    assert ours["seconds"] > 0
    assert ours["bare_seconds"] > 0
    assert run_cli(["bench", "table", str(out)]) == 0
    assert "small model, PGD-20, Linf:8/255, 8 images" in capsys.readouterr().out

"""Races: what is counted, who takes part, and the table."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from buttress.bench import attack_case as race
from buttress.bench import attack_tools as racers
from buttress.bench import models as networks
from buttress.bench.attack_case import PassCountingModel, ToolRun, time_bare_passes
from buttress.bench.attack_tools import TOOLS, installed_tools
from buttress.bench.attacks import BenchmarkCase, attack_tables, benchmark_cases
from buttress.cli.main import run_cli
from buttress.engine.fast_model import FastModel, prepare
from buttress.errors import UserError
from buttress.threats.norm_ball import Threat
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
@pytest.mark.parametrize("event", ["pgd", "autoattack", "workers"])
def test_every_racer_that_is_installed_attacks(event: str) -> None:
    model, (x, _) = small_net().eval().requires_grad_(False), images(6)
    y, threat = model(x).argmax(1), Threat("Linf", 0.05)
    for name in installed_tools(event):
        if "pyautoattack" in name or ("autoattack" in event and "fast" not in name):
            continue  # minutes, and they have tests of their own
        found = TOOLS.get(name)(model, x, y, threat)
        assert found.x_adv.shape == x.shape
        assert not threat.excess(x, found.x_adv).any(), name
        if name != "bare passes":
            assert not torch.equal(found.x_adv, x), name


def test_pgd_is_raced_in_float32_and_takes_all_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    model, (x, _) = small_net().eval().requires_grad_(False), images(6)
    y, made = model(x).argmax(1), []

    def seen(net: nn.Module, x: Tensor) -> FastModel:
        made.append(prepare(net, x))
        return made[-1]

    monkeypatch.setattr(racers, "prepare", seen)
    monkeypatch.setattr(racers, "BATCH", 4)
    for name, count in (("buttress pgd", 0), ("buttress pgd, prepared", 1)):
        found = TOOLS.get(name)(model, x, y, Threat("Linf", 1.0))
        assert found.passes is not None
        assert found.passes[1] == racers.STEPS, "also where an image is broken"
        assert (found.preparing > 0) == bool(count)
        assert len(made) == count
    assert {p.dtype for p in made[0].module.parameters()} <= {torch.float32}


def test_looks_at_memory_take_little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = iter(range(100))

    def slow() -> float:
        time.sleep(0.02)
        return float(next(sizes))

    monkeypatch.setattr(race, "resident_memory_mb", slow)
    monkeypatch.setattr(race.PeakMemory, "EVERY", 0.01)
    with race.PeakMemory() as watch:
        time.sleep(0.4)
    assert watch.growth_mb == 2, "at the start, soon after, and at the end"


def test_the_floor_is_the_time_of_the_passes() -> None:
    model, x = small_net(), images(8)[0]
    assert time_bare_passes(model, x, 0, 0) == 0
    assert time_bare_passes(model, x, 2000, 0) > time_bare_passes(model, x, 2, 0) > 0


def test_heats_cover_networks_events_and_threats() -> None:
    found = list(
        benchmark_cases(["small", "vit"], ["pgd", "autoattack"], ToolRun("", "", 0, ""), 10_000)
    )
    assert len(found) == 2 * (1 + 3)
    assert [[r.racer for r in h.races] for h in found] == [installed_tools(h.event) for h in found]
    assert "buttress pgd" in installed_tools("pgd")
    assert {race.images for race in found[1].races} == {networks.BENCHMARK_MODELS["small"].images}
    assert {race.images for race in found[0].races} == {
        networks.BENCHMARK_MODELS["small"].pgd_images
    }
    (few,) = benchmark_cases(["small"], ["pgd"], ToolRun("", "", 0, ""), 397)  # all that there are
    assert few.races[0].images == 397
    with_checkpoint = ToolRun("", "", 5, "", checkpoint="a=b:c")
    small, vit = benchmark_cases(["small", "vit"], ["pgd"], with_checkpoint, 397)
    assert small.races[0].images == 5
    assert small.races[0].checkpoint == "a=b:c"
    assert vit.races[0].checkpoint is None
    with pytest.raises(UserError, match="`events` must be of"):
        list(benchmark_cases(["small"], ["nonsense"], ToolRun("", "", 0, ""), 9))
    with pytest.raises(UserError, match="`networks` must be of"):
        list(benchmark_cases(["nonsense"], ["pgd"], ToolRun("", "", 0, ""), 9))


def test_the_table_shows_ratios() -> None:
    heat = BenchmarkCase("pgd", (ToolRun("a", "vit", 4, "Linf:8/255"),))
    row = {"title": heat.title, "images": 4, "robust": 3, "forward": 22.0, "backward": 20.0}
    rows = [
        {**row, "racer": "quick", "seconds": 1.0, "floor": 0.5, "memory": 10.0, "preparing": 0.25},
        {**row, "racer": "slow", "seconds": 4.0, "floor": 2.0, "memory": 20.0},
    ]
    rows.append({**row, "racer": "odd", "seconds": 2.0, "floor": 0.0, "memory": 0.0})
    text = "\n".join(attack_tables(rows))
    assert "| odd | 2.00 | 0.500 |  |  | 0 | 3 (30 to 95%) |  |" in text, "nothing to compare with"
    assert "ViT mini, PGD-20, Linf:8/255, 4 images" in text
    assert (
        "| quick | 1.00 (0.25 of it preparing) | 0.250 | 2.00 | 22, 20 | 10 | 3 (30 to 95%) |  |"
        in text
    )


def test_the_table_shows_where_verdicts_differ_from_the_reference() -> None:
    heat = BenchmarkCase("autoattack", (ToolRun("a", "vit", 4, "Linf:8/255"),))
    row = {"title": heat.title, "images": 4, "forward": 2.0, "backward": 2.0, "robust": 2,
           "seconds": 1.0, "floor": 0.5, "memory": 10.0}  # fmt: skip
    rows = [
        {**row, "racer": "pyautoattack", "left": [1, 2]},
        {**row, "racer": "same", "left": [1, 2]},
        {**row, "racer": "other", "left": [1, 3]},
    ]
    shown = {line.split(" | ")[0]: line.split(" | ")[-1] for line in attack_tables(rows)}
    assert shown["| same"] == "100.0% |"
    assert shown["| other"] == "50.0% |"
    assert shown["| pyautoattack"] == " |"


@pytest.mark.slow
def test_the_command_on_bundled_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of every race: a network is trained, racers run in processes, numbers are kept."""
    monkeypatch.setenv("BUTTRESS_CACHE", str(tmp_path / "cache"))
    out = tmp_path / "numbers.json"
    code = run_cli(
        ["bench", "attacks", "--models", "small", "--data", "digits", "--cases", "pgd",
         "--images", "8", "--repeats", "1", "--out", str(out)]
    )  # fmt: skip
    assert code == 0
    rows = json.loads(out.read_text())["rows"]
    by_name = {row["racer"]: row for row in rows}
    ours = by_name["buttress pgd"]
    assert (ours["forward"], ours["backward"]) == (22, 20)
    assert by_name["bare passes"]["backward"] == 20
    assert ours["seconds"] > 0
    assert ours["floor"] > 0

"""Analyses of several runs against planted answers."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from buttress.analysis import (
    ANALYSES,
    AnalysisSubject,
    RunGroup,
    analyze,
    analyze_group,
)
from buttress.analysis.core import Predictor
from buttress.analysis.group import AccuracyInterval, RunScore
from buttress.analysis.methods.predictors import MetricReader, number_at
from buttress.analysis.predict import PredictionResult, correlate
from buttress.analysis.tradeoff import TradeoffResult
from buttress.analysis.transferability import measure_transfer
from buttress.attacks import create_attack
from buttress.cli.commands import main
from buttress.config import ComponentSpec
from buttress.data import Dataset
from buttress.engine import run_attack
from buttress.engine.options import AttackOptions
from buttress.errors import UserError
from buttress.models import list_models
from buttress.models.cost import PassCount
from buttress.results.attack_record import write_attack_record
from buttress.results.core import write_record_json
from buttress.results.run import Run
from buttress.statistics.pareto import pareto_front, possible_front
from buttress.system.progress import SilentProgress
from buttress.threats.norm_ball import NormBall
from buttress.training import train
from buttress.training.cost import passes_per_image
from conftest import Linear, images
from verdicts import evaluation

EPS = 0.05


def flags(right: int, n: int = 10) -> list[bool]:
    return [i < right for i in range(n)]


def evaluate_as(run: Run, clean: int, attacked: int, suite: str = "s") -> None:
    """Verdicts on ten images: as many right without and with an attack."""
    result = evaluation({"clean": flags(clean), "pgd-linf": flags(attacked)})
    for name, record in result.records.items():
        write_attack_record(run.suite_folder(suite) / f"{name}.parquet", record)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train("resnet_tiny", "digits", "quickstart-at", tmp_path_factory.mktemp("t") / "r",
                 limit=16, overrides=("epochs=1", "validation.limit=8"))  # fmt: skip


def copies(trained: Run, folder: Path, names: Sequence[str]) -> list[Run]:
    return [Run(shutil.copytree(trained.path, folder / name)) for name in names]


# Pareto


def test_the_front_of_planted_points() -> None:
    points = [(3.0, 1.0), (1.0, 3.0), (2.0, 2.0), (1.0, 1.0), (2.0, 2.0), (3.0, 0.5)]
    assert pareto_front(points) == [0, 1, 2, 4]
    assert pareto_front([(1.0,), (2.0,), (2.0,)]) == [1, 2]


def test_a_point_is_out_only_beyond_the_intervals() -> None:
    low, high = [(0.5, 0.5), (0.2, 0.2), (0.45, 0.3)], [(0.7, 0.7), (0.3, 0.3), (0.6, 0.5)]
    assert possible_front(low, high) == [0, 2]


def test_tradeoff_of_planted_runs(trained: Run, tmp_path: Path) -> None:
    runs = copies(trained, tmp_path, "abcde")
    for run, (clean, attacked) in zip(runs, [(9, 3), (8, 5), (7, 4), (10, 0)], strict=False):
        evaluate_as(run, clean, attacked)
    result = analyze_group("tradeoff", runs, tmp_path / "out")
    assert isinstance(result, TradeoffResult)
    label = {run.path.name: p for run, p in zip(runs, RunGroup(tuple(runs)).labels, strict=True)}
    assert [p.robust_accuracy.value for p in result.points] == [0.5, 0.4, 0.3, 0.0]
    assert result.front("clean_accuracy").runs == (label["b"], label["a"], label["d"])
    assert result.front("clean_accuracy").not_significantly_worse == (
        label["c"],
    )  # ten images prove little
    assert result.front("parameters").runs == (label["b"],)
    assert result.missing == (label["e"],)
    assert "not evaluated" in result.notes[0]
    point = result.points[0]
    history = trained.history
    assert point.train_seconds == pytest.approx(sum(e["seconds"] for e in history))
    assert point.parameters > 0 < point.macs
    assert label["b"] in result.summary()
    one = analyze_group("tradeoff", runs, tmp_path / "out", args={"attack": "pgd-linf"})
    assert isinstance(one, TradeoffResult)
    assert one.attack == "pgd-linf"
    with pytest.raises(UserError, match="no record of 'fab'"):
        analyze_group("tradeoff", runs, tmp_path / "out", args={"attack": "fab"})


def test_suites_that_are_not_shared_must_be_named(trained: Run, tmp_path: Path) -> None:
    runs = copies(trained, tmp_path, "ab")
    with pytest.raises(UserError, match="no run has been evaluated"):
        analyze_group("tradeoff", runs, tmp_path / "out")
    evaluate_as(runs[0], 9, 3)
    with pytest.raises(UserError, match="at least two runs"):
        analyze_group("tradeoff", runs, tmp_path / "out")
    for suite in ("s", "t"):
        evaluate_as(runs[0], 9, 3, suite)
        evaluate_as(runs[1], 8, 3, suite)
    with pytest.raises(UserError, match="suite=NAME: s, t"):
        analyze_group("tradeoff", runs, tmp_path / "out")
    result = analyze_group("tradeoff", runs, tmp_path / "out", args={"suite": "t"})
    assert isinstance(result, TradeoffResult)
    assert result.suite == "t"


@pytest.mark.parametrize(
    ("objective", "passes"),
    [
        (ComponentSpec(name="standard"), 1),
        (ComponentSpec(name="pgd_at", args={"steps": 3}), 4),
        (ComponentSpec(name="free", args={"repeats": 4}), 4),
        (
            ComponentSpec(name="trades", args={"steps": 2}),
            5,
        ),  # one for the clean logits of the attack
    ],
    ids=lambda v: getattr(v, "name", ""),
)
def test_passes_of_training_are_counted(
    trained: Run, objective: ComponentSpec, passes: int
) -> None:
    recipe = trained.spec.recipe.model_copy(update={"objective": objective})
    assert passes_per_image(recipe).forward == passes


# Transferability


class Half(nn.Module):
    """Says class 1 if the mean of one half of the image is above 1/2."""

    def __init__(self, first: bool, blind: bool = False) -> None:
        super().__init__()
        self.first, self.blind = first, blind

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        seen = flat.detach() + 0 * flat if self.blind else flat
        half = seen[:, : seen.shape[1] // 2] if self.first else seen[:, seen.shape[1] // 2 :]
        score = 10 * (half.mean(1) - 0.5)
        return torch.stack([-score, score], 1)


@dataclass(frozen=True)
class Planted(RunGroup):
    """A group of networks that are no runs."""

    models: tuple[nn.Module, ...] = ()
    data: Dataset | None = None

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple("abcdef"[: len(self.models)])

    def subject(self, index: int) -> AnalysisSubject:
        assert self.data is not None
        return AnalysisSubject(self.models[index], self.data, NormBall("Linf", EPS))


def planted(data: Dataset, *models: nn.Module) -> Planted:
    return Planted(tuple(Run(str(i)) for i in range(len(models))), models=models, data=data)


def halves() -> Dataset:
    y = torch.arange(12) % 2
    x = (0.47 + 0.06 * y.float()).view(-1, 1, 1, 1).expand(-1, 3, 8, 8).contiguous()
    return Dataset.from_arrays(x, y, classes=["0", "1"])


def test_identical_models_transfer_as_the_white_box() -> None:
    model = Linear(3 * 8 * 8, 10).eval()
    x, _ = images(16)
    with torch.no_grad():
        y = model(x).argmax(1)
    y[:4] = (y[:4] + 1) % 10  # four images that it has wrong, which do not count
    data = Dataset.from_arrays(x, y, classes=[str(k) for k in range(10)])
    group, args = planted(data, model, copy.deepcopy(model)), {"steps": 4}
    ball = NormBall("Linf", 0.005)
    result = measure_transfer(group, data, ball, "pgd", args)
    out = run_attack(
        create_attack("pgd", steps=4), model, x, y, ball, ids=data.ids, options=AttackOptions()
    )
    share = out.fooled[4:].float().mean().item()
    assert 0 < share < 1
    assert result.num_correct == (12, 12)
    assert [v for row in result.attack_success_rate for v in row] == pytest.approx([share] * 4)
    assert result.likely_gradient_masking == ()


def test_unrelated_models_do_not_fool_each_other_and_masking_shows() -> None:
    data = halves()
    group = planted(data, Half(True), Half(False), Half(True, blind=True))
    result = measure_transfer(group, data, NormBall("Linf", EPS), "pgd", {"steps": 5})
    assert result.attack_success_rate[0] == (1.0, 0.0, 1.0)
    assert result.attack_success_rate[1] == (0.0, 1.0, 0.0)
    assert result.attack_success_rate[2] == (0.0, 0.0, 0.0)  # its gradient is zero
    assert result.likely_gradient_masking == ("c",)
    assert result.mean_transfer_rate == (0.5, 0.0, 0.0)
    assert result.mean_received_rate == (0.0, 0.0, 0.5)
    assert "gradient masking" in result.summary()
    assert result.low[0][0] == pytest.approx(0.757, abs=1e-3)  # Wilson, 12 of 12


# Predict


def test_the_planted_figure_is_found_and_nulls_are_not() -> None:
    source = np.random.default_rng(0)
    robust = source.random(14).tolist()
    columns: dict[str, tuple[float | None, ...]] = {
        f"null {k}": tuple(source.random(14).tolist()) for k in range(10)
    }
    columns["planted"] = tuple(-(r**3) for r in robust)
    columns["some"] = (*(None,) * 11, 1.0, 2.0, 3.0)
    columns["constant"] = (1.0,) * 14
    result, left_out = correlate(
        columns, robust, {"planted": Predictor("planted", (), uses_attack=True)}
    )
    assert [c.metric for c in result if c.is_significant] == ["planted"]
    assert result[0].value == pytest.approx(-1)
    assert result[0].uses_attack
    assert all(c.p <= c.p_holm and c.low <= c.value <= c.high for c in result)
    assert "3 of 14 runs" in left_out["some"]
    assert "the same in all runs" in left_out["constant"]


def test_a_lucky_null_is_not_real_after_the_correction() -> None:
    """One of twenty nulls looks real alone; the family knows better."""
    source = np.random.default_rng(0)
    robust = source.random(8).tolist()
    nulls = {str(k): tuple(source.random(8).tolist()) for k in range(20)}
    result, _ = correlate(nulls, robust, {})
    assert min(c.p for c in result) < 0.05
    assert not any(c.is_significant for c in result)


def test_figures_of_any_form_are_read() -> None:
    result: Mapping[str, Any] = {"places": [{"a": 1}, {"a": 2.5}], "nan": float("nan"), "yes": True}
    assert number_at(result, ("places", -1, "a")) == 2.5
    for path in [("places", 5, "a"), ("nan",), ("yes",), ("other",), ("places", "a"), ("nan", 0)]:
        assert number_at(result, path) is None


def test_predict_reads_saved_analyses_and_says_what_is_missing(
    trained: Run, tmp_path: Path
) -> None:
    runs = copies(trained, tmp_path, "abcdef")
    for number, run in enumerate(runs):
        evaluate_as(run, 10 - number, number)
        saved = {"analysis": "stability", "result": {"stable": {"fraction": number / 20}}}
        write_record_json(run.analysis_file("stability"), saved)
    (runs[0].path / "analysis" / "lipschitz.json").write_text("{broken")
    result = analyze_group("predict", runs, tmp_path / "out")
    assert isinstance(result, PredictionResult)
    by_name = {c.metric: c for c in result.correlations}
    assert by_name["stability"].value == pytest.approx(1)
    assert by_name["stability"].is_significant
    assert by_name["stability"].values == (0.0, 0.05, 0.1, 0.15, 0.2, 0.25)
    assert by_name["clean accuracy"].value == pytest.approx(-1)
    assert "same in all runs" in result.skipped["parameters"]
    assert "same in all runs" in result.skipped["weights near zero, initial"]  # it was computed
    assert "buttress analyze lipschitz" in result.skipped["Lipschitz L1/Linf"]
    assert "compute=[lipschitz]" in result.skipped["Lipschitz L1/Linf, initial"]
    assert "compute=[sharpness]" in result.skipped["sharpness (in filters), initial"]
    assert "stability +1.00" in result.summary()
    assert result.notes == ()


def test_initial_weights_are_looked_at_as_the_trained_ones_were(
    trained: Run, tmp_path: Path
) -> None:
    (run,) = copies(trained, tmp_path, "a")
    evaluate_as(run, 9, 3)
    analyze("stability", run, args={"limit": 3, "args": {"steps": 1}})
    half = AccuracyInterval(value=0.5, low=0.4, high=0.6)
    score = RunScore("a", run, half, half, num_images=10)
    reader = MetricReader(score, ("stability",), SilentProgress())
    assert reader.cost() == PassCount(3 * 5, 3)  # the attack on three images, for the initial ones
    now, before = (p for p in ANALYSES.predictors() if p.analysis == "stability")
    assert reader.value(now) in (0, 1 / 3, 2 / 3, 1)
    assert reader.value(before) in (0, 1 / 3, 2 / 3, 1)
    with pytest.raises(UserError, match="`compute` must name analyses among lipschitz, sharpness"):
        analyze_group("predict", [run, run], tmp_path / "out", args={"compute": ["gallery"]})


# All of them


TOGETHER = [
    e.name for e in ANALYSES if ANALYSES.spec(e.name).subject == "group" and e.name != "semantics"
]  # needs judges


@pytest.mark.parametrize("name", TOGETHER)
def test_every_analysis_of_runs_saves_draws_and_answers_on_the_command_line(
    name: str, trained: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, run in enumerate(copies(trained, tmp_path / "runs", "abcd")):
        evaluate_as(run, 10 - number, number)
    out, plot = tmp_path / "out", tmp_path / "plot.png"
    args = ["analyse", name, str(tmp_path / "runs"), "--out", str(out), "--plot", str(plot)]
    with pytest.raises(SystemExit) as ended:
        main([*args, "--limit", "6", "--json"])
    assert ended.value.code in (0, None)
    (result,) = json.loads(capsys.readouterr().out).values()
    entry = ANALYSES.entry(name)
    again = ANALYSES.spec(entry.name).result.model_validate(result)
    assert plot.stat().st_size > 2000
    assert (out / f"{name}.svg").is_file()
    assert again.summary()
    figure = Figure(figsize=(8, 4))
    ANALYSES.spec(entry.name).result.plot({"a": again, "b": again}, figure)
    figure.savefig(tmp_path / "two.png")


SHORT: dict[str, dict[str, Any]] = {
    "semantics": {"steps": 2, "limit": 2},
    "transferability": {"args": {"steps": 2}, "limit": 2},
}


@pytest.mark.slow
def test_analyses_of_runs_take_every_architecture(tmp_path: Path) -> None:
    runs = []
    for number, model in enumerate(list_models("tiny")):
        recipe = ("quickstart-at", "quickstart-standard")[number % 2]
        run = train(model, "digits", recipe, tmp_path / "runs" / model, limit=8,
                    overrides=("epochs=1", "validation.limit=4"))  # fmt: skip
        evaluate_as(run, 10 - number % 5, number % 6)
        runs.append(run)
    for entry in ANALYSES:
        if ANALYSES.spec(entry.name).subject == "group":
            args = SHORT.get(entry.name)
            result = analyze_group(entry.name, runs, tmp_path / "out", args=args, limit=2)
            assert result.summary()
            if hasattr(result, "runs"):
                assert len(result.runs) == len(runs)


def test_runs_of_two_data_sets_are_refused(trained: Run, tmp_path: Path) -> None:
    runs = copies(trained, tmp_path, "ab")
    header = json.loads((runs[1].path / "run.json").read_text())
    header["spec"]["dataset"] = "cifar10"
    del header["sha256"], header["record_version"]
    write_record_json(runs[1].path / "run.json", header)
    together = [e.name for e in ANALYSES if ANALYSES.spec(e.name).subject == "group"]
    assert "transferability" in together
    for name in together:  # before any data is loaded, which may not be on this machine
        with pytest.raises(UserError, match="cifar10, digits"):
            analyze_group(name, runs, tmp_path / "out")

"""Analyses against known answers, and on every small architecture."""

from __future__ import annotations

import copy
import inspect
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from matplotlib.figure import Figure
from torch import nn

from buttress.analysis import (
    ANALYSES,
    AnalysisNotApplicable,
    AnalysisSubject,
    analyze,
    analyze_group,
    analyze_standalone,
)
from buttress.analysis.core import AnalysisResult, resolve_args
from buttress.analysis.sparsity import LARGEST_KINDS, sparsity, weight_groups
from buttress.analysis.sparsity_order import RunSparsity, SparsityOrderResult
from buttress.analysis.uncertainty import figure_samples, resolve_path
from buttress.data import Dataset, load_dataset
from buttress.errors import UserError
from buttress.models import create_model, list_models
from buttress.system.progress import ProgressTask, SilentProgress
from buttress.threats.norm_ball import NormBall
from buttress.training import train
from conftest import Linear
from families import WITHOUT_MAPS

OF_ONE_RUN = [e.name for e in ANALYSES if ANALYSES.spec(e.name).subject == "run"]


def subject(model: nn.Module) -> AnalysisSubject:
    return AnalysisSubject(
        model.eval(), load_dataset("digits", "test", limit=12), NormBall("Linf", 0.1)
    )


def test_sparsity_of_known_weights() -> None:
    model: Any = nn.Sequential(nn.Conv2d(3, 2, 1, bias=True), nn.Flatten(), nn.Linear(2, 4))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([0.0, 0.009, 1.0, -0.5, 0.5, 0.0101]).view(2, 3, 1, 1))
        model[0].bias.fill_(100.0)  # biases do not count
        model[2].weight.copy_(torch.tensor([[0.0, -0.001]] * 4))
    result = sparsity(subject(model), bins=4)
    assert result.largest_weight == 1.0
    assert result.weights == 14
    assert result.sparsity == pytest.approx((2 + 8) / 14)
    parts = {p.component: p for p in result.components}
    assert parts["convolution"].sparsity == pytest.approx(2 / 6)
    assert parts["convolution"].weights == 6
    assert sum(result.counts["all"]) == 14
    assert result.edges == (-1.0, -0.5, 0.0, 0.5, 1.0)
    assert [(p.name, p.component, p.weights) for p in result.layers] == [
        ("0.weight", "convolution", 6), ("2.weight", "other", 8),
    ]  # fmt: skip
    assert [p.sparsity for p in result.layers] == [pytest.approx(2 / 6), 1.0]


def outlier_subject(outliers: int) -> AnalysisSubject:
    """100,000 weights of deviation 1, a few of them 100 times as large."""
    model: Any = nn.Sequential(nn.Flatten(), nn.Linear(1000, 100, bias=False))
    weight = torch.randn(100, 1000, generator=torch.Generator().manual_seed(0))
    weight.view(-1)[:outliers] = 100.0
    with torch.no_grad():
        model[1].weight.copy_(weight)
    return subject(model)


def test_a_few_outliers_decide_the_largest_weight_but_not_a_quantile() -> None:
    """One weight of 100 deviations makes two thirds of all others small."""
    plain, planted = sparsity(outlier_subject(0)), sparsity(outlier_subject(1))
    assert plain.sparsity < 0.05
    assert planted.sparsity > 0.65
    assert planted.by_largest["max"] == planted.by_largest["per_tensor"] == planted.sparsity
    assert planted.by_largest["quantile"] == pytest.approx(plain.by_largest["max"], abs=0.01)
    chosen = sparsity(outlier_subject(1), largest=0.99999)
    assert chosen.sparsity == planted.by_largest["quantile"]
    assert chosen.largest_weight < 6 < planted.largest_weight == 100.0
    assert "the 0.99999 quantile" in chosen.summary()


def test_the_largest_of_each_tensor_leaves_other_tensors_alone() -> None:
    model: Any = nn.Sequential(
        nn.Flatten(), nn.Linear(4, 2, bias=False), nn.Linear(2, 2, bias=False)
    )
    with torch.no_grad():
        model[1].weight.copy_(torch.tensor([[100.0, 0.5, 0.5, 0.5], [0.5] * 4]))
        model[2].weight.copy_(torch.tensor([[1.0, 0.5], [0.005, 1.0]]))
    result = sparsity(subject(model), largest="per_tensor")
    assert [layer.sparsity for layer in result.layers] == [7 / 8, 1 / 4]
    assert (result.sparsity, result.by_largest["max"]) == (8 / 12, 9 / 12)
    for wrong in (0.0, 1.0, "min"):
        with pytest.raises(UserError, match="`largest` must be max, per_tensor or a quantile"):
            sparsity(subject(model), largest=wrong)  # type: ignore[arg-type]


def test_the_order_of_models_says_when_it_depends_on_the_largest() -> None:
    def run(label: str, *values: float) -> RunSparsity:
        return RunSparsity(label=label, by_largest=dict(zip(LARGEST_KINDS, values, strict=True)))

    plain = run("plain", 0.03, 0.03, 0.03)
    planted = run("planted", 0.68, 0.02, 0.68)
    result = SparsityOrderResult(by_run={"a": plain, "b": planted})
    assert result.order_changes
    assert "by max: planted > plain; by quantile: plain > planted" in result.summary()
    same = SparsityOrderResult(by_run={"a": plain, "b": run("more", 0.5, 0.5, 0.5)})
    assert not same.order_changes
    assert "the same for every choice" in same.summary()


class Begun(AnalysisSubject):
    """As if it came from a run that began with all weights equal."""

    def build_initial_model(self) -> nn.Module:
        model = copy.deepcopy(self.model)
        for parameter in model.parameters():
            nn.init.constant_(parameter, 0.5)
        return model


def test_sparsity_of_the_initial_weights_is_against_their_own_largest() -> None:
    linear = nn.Linear(3, 4)
    model = nn.Sequential(nn.Flatten(), linear)
    nn.init.eye_(linear.weight)
    bare = subject(model)
    result = sparsity(Begun(model, bare.data, bare.threat))
    assert result.initial is not None
    initial = result.initial
    assert (result.sparsity, initial.sparsity, initial.largest_weight) == (9 / 12, 0.0, 0.5)
    assert "before training 0.0%" in result.summary()
    without = sparsity(bare)
    assert without.initial is None
    assert "bare model" in without.initial_unavailable
    assert "bare model" in without.summary()


@pytest.mark.parametrize("name", list_models("tiny"))
def test_every_weight_of_every_family_is_in_one_group(name: str) -> None:
    model = create_model(name, num_classes=10, image_size=32)
    groups = weight_groups(model)
    assert sum(len(w) for w in groups.values()) == sum(
        p.numel() for p in model.parameters() if p.ndim >= 2
    )


FAST = ("pvt_v2_tiny", "wrn_tiny")
DO_NOT_APPLY = {"attention": WITHOUT_MAPS}


@pytest.mark.parametrize(
    "model",
    [
        name if name in FAST else pytest.param(name, marks=pytest.mark.slow)
        for name in list_models("tiny")
    ],
)
@pytest.mark.parametrize("name", OF_ONE_RUN)
def test_every_analysis_runs_saves_and_draws(name: str, model: str, tmp_path: Path) -> None:
    """Its cost is known before, and it does not meet a network it cannot take unprepared."""
    entry = ANALYSES.entry(name)
    args = resolve_args(entry, ANALYSES.spec(name).example_args)
    given = subject(create_model(model, seed=0))
    cost = ANALYSES.spec(entry.name).cost(given.scope, **args)
    assert cost.forward + cost.backward > 0 or entry.tags == ("weights",)  # of the weights alone
    if model in DO_NOT_APPLY.get(name, ()):
        with pytest.raises(AnalysisNotApplicable):
            ANALYSES.create(name, {"subject": given, **args})
        return
    result = ANALYSES.create(name, {"subject": given, **args})
    again = ANALYSES.spec(entry.name).result.model_validate_json(result.model_dump_json())
    assert again == result
    assert result.summary().endswith(".")
    check_samples(name, result)
    figure = Figure(figsize=(8, 4))
    ANALYSES.spec(entry.name).result.plot({"a": result, "b": again}, figure)
    figure.savefig(tmp_path / "plot.png")
    assert (tmp_path / "plot.png").stat().st_size > 2000


def check_samples(name: str, result: AnalysisResult) -> None:
    """Every figure with samples is their statistic; every other one says why it has none."""
    notes = [n.model_dump(mode="json") for n in ANALYSES.spec(name).uncertainty]
    record = {"result": result.model_dump(mode="json"), "uncertainty": notes}
    for path in result.samples:
        value: Any = record["result"]
        for key in resolve_path(value, path):
            value = value[key]
        # The quotient of each image is taken at the eigenvector, which Lanczos finds in float32.
        rel = 5e-3 if path.endswith("hessian.largest") else 1e-4
        assert figure_samples(record, path).value == pytest.approx(value, rel=rel, abs=1e-5), path
    for path in ("images", "threat"):
        if path in record["result"]:
            assert figure_samples(record, path).reason


@pytest.mark.parametrize("name", OF_ONE_RUN)
def test_every_analysis_has_samples_or_says_why_not(name: str) -> None:
    spec, given = ANALYSES.spec(name), subject(create_model("vit_tiny", seed=0))
    result = ANALYSES.create(name, {"subject": given, **spec.example_args})
    assert result.samples or {note.pattern for note in spec.uncertainty} == {"*"}


DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted((DOCS / "analyses").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_of_an_analysis_has_a_picture_and_its_command(page: Path) -> None:
    """A page says what the numbers mean, and how its picture was made."""
    text = page.read_text()
    assert f"buttress analyze {ANALYSES.entry(page.stem).name} " in text
    pictures = re.findall(r"!\[.+\]\((.+)\)", text)
    assert pictures
    assert all((page.parent / picture).is_file() for picture in pictures)


def test_every_analysis_has_a_page_or_is_explained_by_its_docstring() -> None:
    assert len(PAGES) >= 19
    assert "\nanalyses/*\n" in (DOCS / "analysis.md").read_text()
    written = {page.stem for page in PAGES}
    for entry in ANALYSES:
        assert entry.name in written or entry.summary


@pytest.mark.parametrize("name", ANALYSES.names())
def test_a_cost_takes_arguments_of_the_analysis_and_has_no_defaults_of_its_own(name: str) -> None:
    entry = ANALYSES.entry(name)
    own = set(inspect.signature(entry.value).parameters)
    asked = inspect.signature(ANALYSES.spec(entry.name).cost).parameters.values()
    named = [p for p in asked if p.kind is not p.VAR_KEYWORD]
    assert {p.name for p in named} <= own | {"scope"}
    assert all(p.default is p.empty for p in named)


class Log(SilentProgress):
    """What is said, in the order in which it is said and tasks begin."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def add_task(self, description: str, total: float) -> ProgressTask:
        self.said.append(f"task {description}")
        return super().add_task(description, total)

    def log(self, text: str) -> None:
        self.said.append(text)


def test_what_it_costs_is_said_before_it_starts(tmp_path: Path) -> None:
    run = train("resnet_tiny", "digits", "quickstart-at", tmp_path / "r", limit=16,
                overrides=("epochs=1", "validation.limit=8"))  # fmt: skip
    log = Log()
    analyze("perturbations", run, args={"limit": 4}, progress=log)
    assert re.match(r"perturbations: .*80 backward passes, about .* s$", log.said[0])
    assert log.said[1].startswith("task perturbations")
    log = Log()
    args = {"limit": 4, "args": {"steps": 5}}
    analyze_group("transferability", [run, run], tmp_path / "out", args=args, progress=log)
    # two networks: 4 images x 5 steps, one more look, and the clean and both examples
    assert re.match(r"transferability: 80 forward and 40 backward passes, about", log.said[0])
    log = Log()
    analyze_standalone("rademacher", tmp_path / "out", args={"dimensions": [4, 8]}, progress=log)
    assert log.said[0].startswith("rademacher: 2.9e+06 multiply-adds")


def test_an_argument_that_does_not_fit_is_an_error_before_the_cost() -> None:
    entry = ANALYSES.entry("landscape")
    for given, said in (
        ({"point": 5}, "unknown argument 'point'"),
        ({"subject": 5}, "unknown argument 'subject'; accepted: radius"),
        ({"points": "many"}, "must be an integer"),
    ):
        with pytest.raises(UserError, match=said):
            resolve_args(entry, given)


def test_the_gallery_shows_the_same_images_for_every_model() -> None:
    first, second = (
        ANALYSES.create(
            "gallery", {"subject": subject(create_model("vit_tiny", seed=s)), "examples": 3}
        )
        for s in (0, 1)
    )
    assert [e.id for e in first.examples] == [e.id for e in second.examples]
    assert all(0 < e.distance <= 0.1 * (1 + 1e-5) for e in first.examples)
    assert len({e.label for e in first.examples}) == 3


def test_a_result_is_saved_under_its_defaults_too() -> None:
    """A default that changes later must not pass an old result off as a new one."""
    entry = ANALYSES.entry("sparsity")
    assert resolve_args(entry, {"bins": 5}) == {"threshold": 0.01, "largest": "max", "bins": 5}
    assert resolve_args(entry, None) == resolve_args(entry, {"threshold": 0.01})
    for other in ANALYSES:
        whole = resolve_args(other, {})
        assert json.loads(json.dumps(whole, allow_nan=False)) == whole


def test_the_curve_of_a_linear_model_is_that_of_its_margins() -> None:
    """In Linf an image falls at the eps that is its margin over the l1 norm of the weights."""
    pull = torch.randn(12, generator=torch.Generator().manual_seed(5))
    pull -= pull.mean()  # so that images lie on both sides
    model = Linear(12, 2).eval()
    with torch.no_grad():
        model.weight.copy_(torch.stack([pull, -pull]))
    x = 0.3 + 0.4 * torch.rand(40, 3, 2, 2, generator=torch.Generator().manual_seed(6))
    with torch.no_grad():
        logits = model(x)
    data = Dataset.from_arrays(x, logits.argmax(1), classes=["a", "b"])
    falls = (logits[:, 0] - logits[:, 1]).abs() / (2 * pull.abs().sum())
    result = ANALYSES.create(
        "curve",
        {
            "subject": AnalysisSubject(model, data, NormBall("Linf", 0.05)),
            "factors": (0.0, 0.2, 0.5, 1.0),
        },
    )
    assert result.eps == pytest.approx((0.0, 0.01, 0.025, 0.05))
    assert result.accuracy == pytest.approx([float((falls > e).float().mean()) for e in result.eps])
    assert 0 < result.accuracy[2] < result.accuracy[1] < 1 == result.accuracy[0]
    said = result.summary()
    assert "is 100.0% at eps 0" in said

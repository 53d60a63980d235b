"""Known-bad models are diagnosed by name, known-good ones pass, and numbers keep their verdict."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import buttress as bt
from buttress.cli.main import run_cli
from buttress.data import Dataset, load_dataset
from buttress.evaluation import CHECKS, load_evaluation
from buttress.evaluation.doctor import AttackRecords, ModelUnderTest
from buttress.evaluation.doctor.core import run_checks
from buttress.models.core import Normalize
from buttress.models.loading.checkpoint import load_checkpoint
from buttress.results.attack_record import AttackRecord
from buttress.results.diagnosis import Diagnosis, Finding, read_diagnosis
from buttress.threats.norm_ball import NormBall
from collapsing import go
from conftest import images, small_net

SIZE, EPS = 12, 0.06


@lru_cache
def digits(split: str = "test", limit: int | None = 48) -> Dataset:
    return load_dataset("digits", split, limit=limit, image_size=SIZE)


def network(*, batch_norm: bool = False, flat: bool = False) -> nn.Sequential:
    data = digits("train", None)
    first = Normalize(data.mean, data.std)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        if flat:
            return nn.Sequential(first, nn.Flatten(), nn.Linear(3 * SIZE**2, 10))
        norm = nn.BatchNorm2d(12) if batch_norm else nn.Identity()
        return nn.Sequential(
            first, nn.Conv2d(3, 12, 5, 2, 2), norm, nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1),
            nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(24 * (SIZE // 4) ** 2, 10),
        )  # fmt: skip


def fitted(model: nn.Module, *, epochs: int = 6, eps: float = 0.0) -> nn.Module:
    """Trained on digits, on images moved by two steps along the gradient if there is an eps."""
    data, source = digits("train", None), torch.Generator().manual_seed(0)
    optimizer, everything = torch.optim.Adam(model.parameters(), lr=4e-3), data.images
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for _ in range(epochs):
            for rows in torch.randperm(len(data), generator=source).split(32):
                x, y = everything[rows], data.labels[rows]
                if eps:
                    x = bt.attack("pgd", model, x, y, threat=f"Linf:{eps}", steps=2, rel_step=0.7)
                loss = F.cross_entropy(model.train()(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return model.eval()


@lru_cache
def trained() -> nn.Module:
    return fitted(network())


class Around(nn.Module):
    """A trained network with something before and after it."""

    def __init__(
        self,
        before: Callable[[Tensor], Tensor] = lambda x: x,
        after: Callable[[Tensor], Tensor] = lambda z: z,
        net: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.net, self.before, self.after = net or trained(), before, after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self.net(self.before(x)))


def without_normalisation() -> nn.Module:
    net = network()
    net.load_state_dict(trained().state_dict())
    net[0] = nn.Identity()
    return net.eval()


def dropout_left_on() -> nn.Module:
    return Around(lambda x: F.dropout(x, 0.3, training=True)).eval()


def by_the_batch() -> nn.Module:
    net = fitted(network(batch_norm=True), epochs=1)
    norm = net.get_submodule("2")
    assert isinstance(norm, nn.BatchNorm2d)
    norm.track_running_stats, norm.running_mean, norm.running_var = False, None, None
    return net


def rippled() -> nn.Module:
    """One step of length eps lands where it began; shorter ones climb the ripples.

    x + a sin(2 pi x / eps) has the period eps but for x itself, and its slope points anywhere.
    """

    def ripple(x: Tensor) -> Tensor:
        return x + 0.2 * torch.sin(2 * math.pi * x / EPS)

    net = network()
    fitted(Around(ripple, net=net))
    return Around(ripple, net=net).eval()


MASKED = ("black_box_beats_white_box", "robust_at_any_eps", "loss_does_not_increase")
BAD: dict[str, tuple[Callable[[], nn.Module], tuple[str, ...]]] = {
    "logits times 1e4": (
        lambda: Around(after=lambda z: 1e4 * z).eval(),
        ("saturated_gradient", "weak_attack", *MASKED),
    ),
    "noise": (lambda: Around(lambda x: x + 0.2 * torch.randn(x.shape)).eval(), ("random_outputs",)),
    "detached": (lambda: Around(lambda x: x.detach()).eval(), ("no_gradient_path", *MASKED)),
    "quantised": (
        lambda: Around(lambda x: (4 * x).round() / 4).eval(),
        ("zero_gradient", *MASKED),
    ),
    "softmax": (
        lambda: Around(after=lambda z: z.softmax(1)).eval(),
        ("outputs_are_probabilities",),
    ),
    "dropout left on": (dropout_left_on, ("random_outputs",)),
    "training mode": (
        lambda: fitted(network(batch_norm=True), epochs=1).train(),
        ("training_mode",),
    ),
    "BatchNorm on the batch": (by_the_batch, ("batch_dependent_outputs",)),
    "collapsed": (rippled, ("catastrophic_overfitting",)),
    "not finite": (lambda: Around(after=torch.log).eval(), ("nonfinite_outputs",)),
    "seven classes": (lambda: small_net(7, size=SIZE), ("class_count",)),
}


def named(found: Diagnosis) -> dict[str, Finding]:
    return {f.check: f for f in found.findings}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_model_is_diagnosed_by_name(case: str) -> None:
    make, names = BAD[case]
    model = make()
    mode = model.training
    found = bt.diagnose(model, digits(limit=48 if MASKED[0] in names else 20), f"Linf:{EPS}")
    assert set(names) <= set(named(found)), found.trust_level
    assert found.is_trustworthy == (case == "training mode")
    assert model.training == mode
    for one in found.findings:
        assert one.evidence
        assert one.remedy


def test_causes_are_named() -> None:
    def look(model: nn.Module) -> dict[str, Finding]:
        patient = ModelUnderTest(model, digits(), NormBall("Linf", EPS))
        return {f.check: f for f in run_checks(patient, "model")}

    assert look(dropout_left_on())["random_outputs"].evidence["cause"] == "dropout"
    assert (
        "BatchNorm uses the statistics" in look(by_the_batch())["batch_dependent_outputs"].message
    )
    said = look(network(batch_norm=True).train())["training_mode"].message
    assert "(BatchNorm2d, Dropout behave differently)" in said


def stretched(x: Tensor) -> Tensor:
    data = digits("train", None)
    return Normalize(data.mean, data.std)(x)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Around(stretched).eval(), "normalized_twice"),
        (without_normalisation, "not_normalized"),
        (lambda: Around(lambda x: x / 255).eval(), "wrong_input_range"),
    ],
)
def test_images_in_the_wrong_form_are_noticed(make: Callable[[], nn.Module], name: str) -> None:
    found = run_checks(ModelUnderTest(make(), digits(limit=None), NormBall("Linf", EPS)), "model")
    assert name in [f.check for f in found]


def test_a_network_that_expects_normalised_images_is_noticed_by_its_accuracy() -> None:
    """Classes lie at two points after normalisation; without it all images are on one side."""
    source = torch.Generator().manual_seed(0)
    y = torch.arange(200) % 2
    x = (
        0.8 + 0.1 * y.view(-1, 1, 1, 1) + 0.01 * torch.randn(200, 3, 4, 4, generator=source)
    ).clamp(0, 1)
    data = Dataset.from_arrays(x, y)
    linear = nn.Linear(48, 2)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[-1.0], [1.0]]).expand(2, 48) / 48)
        linear.bias.zero_()
    net = nn.Sequential(nn.Flatten(), linear)
    once = nn.Sequential(Normalize(data.mean, data.std), net).eval()
    twice = nn.Sequential(Normalize(data.mean, data.std), once).eval()
    threat = NormBall("Linf", 0.01)

    def names(model: nn.Module) -> list[str]:
        return [f.check for f in run_checks(ModelUnderTest(model, data, threat), "model")]

    assert names(once) == []
    assert names(net) == ["not_normalized"]
    assert "normalized_twice" in names(twice)
    found = run_checks(ModelUnderTest(net, data, threat), "model")[0]
    assert found.severity == "untrustworthy"
    assert found.evidence["before"] == 0.5
    assert found.evidence["after"] == 1.0


GOOD: dict[str, Callable[[], nn.Module]] = {
    "standard": trained,
    "adversarially trained": lambda: fitted(network(), epochs=4, eps=EPS),
    "linear": lambda: fitted(network(flat=True), epochs=3),
}


@pytest.mark.parametrize(
    ("case", "threat"), [*((case, f"Linf:{EPS}") for case in GOOD), ("standard", "L2:1")]
)
def test_a_good_model_passes(case: str, threat: str) -> None:
    found = bt.diagnose(GOOD[case](), digits(limit=64), threat)
    assert [f.text for f in found.findings if f.severity != "note"] == []
    assert found.trust_level == "trustworthy"
    assert {c.outcome for c in found.checks if c.name != "few_images"} == {"passed"}
    assert {c.name for c in found.checks} == set(bt.list_checks())
    assert found.passes > 0


CHECKPOINT = Path(__file__).parents[3] / "shared" / "checkpoints" / "resnet2b.pth"


@pytest.mark.reference
@pytest.mark.skipif(not CHECKPOINT.is_file(), reason="the published checkpoint is not here")
@pytest.mark.parametrize("fed", ["once", "twice", "never"])
def test_the_published_network_passes_only_if_images_are_normalised_once(
    fed: str, cifar10: None
) -> None:
    mean, std = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)
    data = load_dataset("cifar10", "test", limit=256)
    name = f"{Path(__file__).parents[2]}/examples/resnet2b.py:ResNet2B"
    given: dict[str, Any] = {} if fed == "never" else {"mean": mean, "std": std}
    model: nn.Module = bt.load_model(CHECKPOINT, model=name, **given)
    if fed == "twice":
        model = nn.Sequential(Normalize(mean, std), model).eval()
    found = bt.diagnose(model, data, "Linf:2/255")
    expected = {"once": [], "twice": ["normalized_twice"], "never": ["not_normalized"]}[fed]
    assert [f.check for f in found.findings] == expected


@pytest.mark.slow
def test_a_network_that_collapsed_in_training_is_named(tmp_path: Path) -> None:
    run = go(tmp_path, "fallen", "warn", 40)
    model = bt.load_model(str(run.path))
    model.load_state_dict(load_checkpoint(run.checkpoint("last"))["model"])
    found = bt.diagnose(model, load_dataset("digits", "test", limit=200), "Linf:0.22")
    assert "catastrophic_overfitting" in named(found)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["quickstart-at", "quickstart-standard"])
def test_quickstart_models_pass(tmp_path: Path, recipe: str) -> None:
    run = bt.train("vit_tiny", "digits", recipe, tmp_path / "r")
    found = bt.diagnose(bt.load_model(str(run.path)), load_dataset("digits", "test", limit=256))
    assert [f.text for f in found.findings if f.severity != "note"] == []


@pytest.mark.parametrize(
    ("threat", "names"),
    [("Linf:8/255", []), ("Linf:0.031", ["rounded_eps"]), ("Linf:0.0314", []), ("Linf:0.06", []),
     ("Linf:1", ["eps_too_large", "unusual_eps"]), ("L2:0.5", []),
     ("L2:8", ["eps_too_large", "unusual_eps"]), ("L1:12", []), ("Linf:1/2550", ["unusual_eps"])],
)  # fmt: skip
def test_balls_of_odd_sizes_are_told(threat: str, names: list[str], tiny_data: Dataset) -> None:
    patient = ModelUnderTest(small_net(), tiny_data, NormBall.parse(threat))
    assert [f.check for f in run_checks(patient, "threat")] == names


def record(name: str, attack: str, right: int, n: int = 100, **meta: object) -> AttackRecord:
    """The first ``right`` of ``n`` images are right."""
    flags = np.arange(n) < right
    zeros = np.zeros(n, np.float32)
    made = {"attack": attack, "threat": "" if attack == "clean" else "Linf:0.1", **meta}
    return AttackRecord(
        name, np.arange(n), np.zeros(n, int), np.zeros(n, int), flags, zeros, zeros, made
    )


@pytest.mark.parametrize(
    ("attacks", "name", "severity"),
    [
        ([("pgd", 50), ("square", 48)], None, ""),  # two images may be luck
        ([("pgd", 50), ("square", 47)], "black_box_beats_white_box", "warning"),
        ([("square", 40), ("pgd", 50)], "black_box_beats_white_box", "untrustworthy"),
        ([("pgd", 50), ("fgsm", 40)], "one_step_beats_many", "untrustworthy"),
        ([("pgd", 50), ("noise", 40)], "noise_beats_gradients", "untrustworthy"),
        ([("fgsm", 40), ("noise", 20)], None, ""),  # one step is no strong attack
        ([("fgsm", 80), ("pgd", 3)], "catastrophic_overfitting", "untrustworthy"),
        ([("fgsm", 30), ("pgd", 0)], None, ""),  # a standard network
        ([("pgd", 50), ("fast", 41)], None, ""),
        ([("pgd", 50), ("fast", 39)], "weak_attack", "warning"),
    ],
)
def test_what_attacks_say_of_each_other(
    attacks: list[tuple[str, int]], name: str | None, severity: str
) -> None:
    clean = record("clean", "clean", 90, class_names=list(range(10)))
    found = run_checks(AttackRecords([clean, *(record(a, a, k) for a, k in attacks)]), "records")
    found = [f for f in found if f.check != "few_images"]
    assert [(f.check, f.severity) for f in found] == ([(name, severity)] if name else [])


def test_attacks_of_different_balls_are_not_compared() -> None:
    other = record("square", "square", 0, threat="Linf:0.3")
    assert run_checks(AttackRecords([record("pgd", "pgd", 90), other]), "records") == []


def test_square_inside_an_ensemble_is_counted() -> None:
    """Before square 50 images were left, of which it attacked 30 and spared 20; 40 are left."""
    parts = [["apgd-ce", 90, 0], ["square", 30, 20]]
    (found,) = run_checks(
        AttackRecords([record("aa", "autoattack", 40, n=1000, stages=parts)]), "records"
    )
    assert found.check == "black_box_beats_white_box"
    assert found.evidence["fooled"] == 10
    parts[1] = ["square", 30, 11]
    assert (
        run_checks(AttackRecords([record("aa", "autoattack", 40, n=1000, stages=parts)]), "records")
        == []
    )


def test_guessing_and_few_images_are_told() -> None:
    clean = record("clean", "clean", 11, class_names=list(range(10)))
    assert [f.check for f in run_checks(AttackRecords([clean]), "records")] == [
        "near_chance_accuracy"
    ]
    few = record("clean", "clean", 10, n=20)
    (found,) = run_checks(AttackRecords([few]), "records")
    assert (found.check, found.severity) == ("few_images", "note")


@pytest.mark.parametrize("name", bt.list_checks())
def test_every_check_says_what_it_looks_for(name: str) -> None:
    entry = CHECKS.entry(name)
    assert entry.summary.endswith(".")
    assert set(entry.tags) & {"data", "model", "threat", "records", "attack"}
    page = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()
    assert f"`{name}`" in page


def masked(x: Tensor) -> Tensor:
    return (8 * x).round() / 8


def test_findings_are_stored_with_the_records_and_read_back(tmp_path: Path) -> None:
    model = Around(masked, net=small_net()).eval()
    x, _ = images(64)
    data = Dataset.from_arrays(x, model(x).argmax(1), classes=[str(k) for k in range(10)])
    square = {"name": "square", "attack": "square", "threat": "Linf:0.06", "args": {"queries": 300}}
    suite: list[Any] = ["clean", "pgd:Linf:0.06", square]
    found = bt.evaluate(model, data, suite, out=tmp_path)
    names = [f.check for f in found.findings if f.severity == "untrustworthy"]
    assert set(names) == {
        "zero_gradient", "loss_does_not_increase", "robust_at_any_eps", "transfer_beats_gradients",
        "black_box_beats_white_box",
    }  # fmt: skip
    assert not found.is_trustworthy
    assert any("square fools" in w for w in found.warnings)
    again = load_evaluation(tmp_path)
    assert again.findings == found.findings
    assert again.warnings == found.warnings
    assert found.to_dict()["is_trustworthy"] is False
    assert json.loads(json.dumps(found.to_dict()))["findings"][0]["check"] == "zero_gradient"
    resumed = bt.evaluate(model, data, suite, out=tmp_path)
    assert resumed.findings == found.findings
    sound = bt.evaluate(trained(), digits(), suite)
    assert sound.is_trustworthy
    assert sound.warnings == ()


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("doctor") / "r1"
    quick = ("epochs=1", "validation.limit=16")
    bt.train(
        "vit_tiny", "digits", "quickstart-standard", out, limit=64, device="cpu", overrides=quick
    )
    return out


def test_the_command_saves_its_diagnosis_and_evaluate_shows_it(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["doctor", str(run_dir), "--limit", "16"]
    assert run_cli([*args, "--json"]) == 0
    said = capsys.readouterr()
    assert "passes" in said.err  # what it will cost
    found = json.loads(said.out)
    saved = read_diagnosis(run_dir / "analysis" / "doctor.json")
    assert saved is not None
    assert saved.to_dict() == found
    assert run_cli(args) == 0
    text = capsys.readouterr().out
    assert f"result: {found['trust_level']}" in text
    assert all(name in text for name in bt.list_checks())

    bad = Finding(check="zero_gradient", severity="untrustworthy", message="flat", remedy="look")
    saved.model_copy(update={"findings": (bad,)}).save(run_dir / "analysis" / "doctor.json")
    show = ["evaluate", str(run_dir), "--suite", "clean,pgd:Linf:0.06", "--limit", "8"]
    assert run_cli(show) == 0
    assert capsys.readouterr().out.count("not trustworthy") == 3  # both attacks and the worst case
    assert run_cli([*show, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["is_trustworthy"] is False
    other = saved.model_copy(update={"findings": (bad,), "weights_digest": "other"})
    other.save(run_dir / "analysis" / "doctor.json")
    assert run_cli([*show, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["is_trustworthy"] is True


def test_strict_fails_on_what_cannot_be_trusted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "net.py").write_text(
        "from torch import nn\n"
        "def net():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(3072, 10), nn.Softmax(1))\n"
    )
    args = ["doctor", f"{tmp_path}/net.py:net", "--data", "digits", "--limit", "8"]
    assert run_cli(args) == 0
    assert "untrustworthy: outputs_are_probabilities" in capsys.readouterr().out
    assert run_cli([*args, "--strict"]) == 1
    capsys.readouterr()
    assert run_cli(args[:2]) == 2
    assert "--data" in capsys.readouterr().err

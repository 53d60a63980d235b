"""An exported folder holds the very weights, loads safely, and appears whole or not at all."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import buttress as bt
from buttress.cli.main import run_cli
from buttress.errors import RunError, UserError
from buttress.export import export as hub
from buttress.export.weights import load_run_model
from buttress.models import Classifier, create_model
from buttress.models.loading.load import load_weights
from buttress.models.loading.weight_file import read_state_dict
from buttress.results.run import Run
from buttress.system.locks import current_holder
from buttress.system.progress import SilentProgress
from exported_runs import MODEL, autoattack, digits, finished_run, make_spec, verdicts

FILES = {"README.md", "buttress.json", "model.safetensors", "model_info/digits/Linf/Net.json"}


def loaded(folder: Path) -> Classifier:
    """The model that the two files describe, built from nothing else."""
    facts = json.loads((folder / "buttress.json").read_text())
    names = ("num_classes", "image_size", "in_channels", "mean", "std")
    model = create_model(
        facts["model"], **{n: facts[n] for n in names}, options=facts["model_args"], seed=5
    )
    path = folder / "model.safetensors"
    load_weights(model, read_state_dict(path), path, keep_normalization=True)
    return model.eval()


@pytest.mark.parametrize("which", ["best", "last"])
@pytest.mark.parametrize(
    "spec",
    [
        make_spec(),
        make_spec(model="resnet_tiny", in_channels=1, mean=(0.5,), std=(0.3,), dataset="none"),
        make_spec(model="xcit_tiny", model_args={"patch": 8}, num_classes=3),
    ],
    ids=lambda s: s.model,
)
def test_the_exported_model_gives_identical_logits(spec: Any, which: Any, tmp_path: Path) -> None:
    run = finished_run(tmp_path / "r", spec)

    bt.export_run(run, tmp_path / "out", checkpoint=which)

    x = torch.rand(4, spec.in_channels, 32, 32)
    model, again = load_run_model(run, which), loaded(tmp_path / "out")
    assert torch.equal(model(x), again(x))
    assert {n: t.dtype for n, t in model.state_dict().items()} == {
        n: t.dtype for n, t in load_file(tmp_path / "out" / "model.safetensors").items()
    }
    other = load_run_model(run, "last" if which == "best" else "best")
    assert not torch.equal(other(x), again(x))


def test_the_folder_loads_by_its_path_alone(run: Run, tmp_path: Path) -> None:
    bt.export_run(run, tmp_path / "out")

    model = bt.load_model(tmp_path / "out")

    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(model(x), load_run_model(run, "best")(x))


def test_the_description_is_complete_and_exact(run: Run, tmp_path: Path) -> None:
    verdicts(run, "clean", 300)

    found = bt.export_run(run, tmp_path / "out")

    facts = json.loads((tmp_path / "out" / "buttress.json").read_text())
    assert list(facts) == [
        "model", "num_classes", "image_size", "in_channels", "mean", "std", "model_args",
        "classes", "weights_sha256", "version",
    ]  # fmt: skip
    assert {k: facts[k] for k in MODEL} == MODEL
    assert facts["classes"] == list(digits().classes)
    normalize = load_run_model(run, "best").normalize
    assert torch.tensor(facts["mean"]).equal(normalize.mean.flatten())
    assert torch.tensor(facts["std"]).equal(normalize.std.flatten())
    content = (tmp_path / "out" / "model.safetensors").read_bytes()
    assert facts["weights_sha256"] == hashlib.sha256(content).hexdigest() == found.weights_sha256


def test_a_network_from_a_file_of_ones_own_takes_its_file_along(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    source = tmp_path / "code" / "own.py"
    source.write_text(
        "from torch import nn\n\n\n"
        "class Tied(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.a = nn.Linear(3072, 10)\n"
        "        self.b = nn.Linear(3072, 10)\n"
        "        self.b.weight = self.a.weight  # the weight has two names\n\n"
        "    def forward(self, x):\n"
        "        return self.a(x.flatten(1)) + self.b(x.flatten(1))\n\n\n"
        "def net():\n"
        "    return Tied()\n"
    )
    run = finished_run(tmp_path / "r", make_spec(model=f"{source}:net"))

    bt.export_run(run, tmp_path / "out")

    out = tmp_path / "out"
    assert json.loads((out / "buttress.json").read_text())["model"] == "own.py:net"
    assert (out / "own.py").read_text() == source.read_text()
    written = "".join(p.read_text() for p in out.rglob("*.*") if p.suffix in (".md", ".json"))
    assert str(tmp_path) not in written
    assert "read it first" in written
    model = bt.load_model(out / "model.safetensors", model=f"{out}/own.py:net", num_classes=10)
    x = torch.rand(2, 3, 32, 32)
    assert torch.equal(model(x), load_run_model(run, "best")(x))


def test_a_second_export_needs_to_be_asked_for(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    bt.export_run(run, out, name="Net")
    first = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    (out / "mine.txt").write_text("notes")

    with pytest.raises(UserError, match="--force"):
        bt.export_run(run, out, name="Net")
    bt.export_run(run, out, name="Net", force=True)

    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == first  # to the last byte
    assert {p.relative_to(out).as_posix() for p in first} == FILES


def test_a_folder_of_something_else_is_never_replaced(run: Run, tmp_path: Path) -> None:
    for place in (run.path, tmp_path / "file"):
        (tmp_path / "file").write_text("x")
        with pytest.raises(UserError, match="not an export"):
            bt.export_run(run, place, force=True)
    assert run.state == "done"
    (tmp_path / "empty").mkdir()
    bt.export_run(run, tmp_path / "empty")
    assert (tmp_path / "empty" / "README.md").is_file()


@pytest.mark.parametrize("there", [False, True])
def test_an_interruption_leaves_nothing_half_written(
    there: bool, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "place"
    if there:
        bt.export_run(run, place / "out", name="old")
    before = {p: p.read_bytes() for p in place.rglob("*") if p.is_file()}

    def interrupted(*args: object) -> str:
        raise KeyboardInterrupt

    # The module, whose name in its package is taken by the function.
    monkeypatch.setattr(sys.modules["buttress.export.export"], "render_model_card", interrupted)
    with pytest.raises(KeyboardInterrupt):
        bt.export_run(run, place / "out", name="new", force=True)

    assert {p: p.read_bytes() for p in place.rglob("*") if p.is_file()} == before
    assert [p.name for p in place.iterdir()] == ["out"] * there


def test_mistakes_are_named_before_anything_is_written(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(UserError, match=r"run\.json"):
        bt.export_run(tmp_path / "nothing", out)
    with pytest.raises(UserError, match="best, last"):
        bt.export_run(run, out, checkpoint="first")  # type: ignore[arg-type]
    with pytest.raises(UserError, match="OWNER/NAME"):
        bt.export_run(run, out, push_to_hub="../../x")
    run.checkpoint("last").unlink()
    with pytest.raises(UserError, match="no checkpoint"):
        bt.export_run(run, out, checkpoint="last")
    assert not out.exists()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["runs"]


class FakeHub:
    """Keeps what would be uploaded."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.error = error

    def create_repo(self, repo_id: str, **how: Any) -> None:
        self.calls.append(("create", repo_id))
        if self.error:
            raise self.error

    def upload_folder(self, *, repo_id: str, folder_path: str, **how: Any) -> None:
        files = {p.relative_to(folder_path).as_posix() for p in Path(folder_path).rglob("*.*")}
        self.calls.append((repo_id, files))


class Told:
    """Progress that notes what was said, and how much had been uploaded by then."""

    def __init__(self, fake: FakeHub) -> None:
        self.fake = fake
        self.said: list[tuple[str, int]] = []

    def add_task(self, description: str, total: float) -> Any:
        from buttress.system.progress import SilentProgress

        return SilentProgress().add_task(description, total)

    def log(self, text: str) -> None:
        self.said.append((text, len(self.fake.calls)))


def test_upload_is_asked_for_and_says_what_first(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakeHub()
    monkeypatch.setattr(hub, "hub_client", lambda: fake)
    told = Told(fake)

    assert bt.export_run(run, tmp_path / "a", name="Net", progress=told).hub_url == ""
    assert (fake.calls, told.said) == ([], [])
    found = bt.export_run(run, tmp_path / "b", name="Net", push_to_hub="me/net", progress=told)

    ((text, calls_before),) = told.said
    assert calls_before == 0
    assert all(file in text for file in FILES)
    assert fake.calls == [("create", "me/net"), ("me/net", FILES)]
    assert found.hub_url == "https://huggingface.co/me/net"


def test_a_failed_upload_keeps_the_export(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "hub_client", lambda: FakeHub(ConnectionError("no network")))

    with pytest.raises(RunError, match=r"no network.*is complete.*--force"):
        bt.export_run(run, tmp_path / "out", name="Net", push_to_hub="me/net")

    files = {p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*.*")}
    assert files == FILES


def test_the_real_hub_has_the_calls_we_make() -> None:
    import inspect

    api = hub.hub_client()
    inspect.signature(api.create_repo).bind("a/b", repo_type="model", exist_ok=True)
    inspect.signature(api.upload_folder).bind(
        repo_id="a/b", repo_type="model", folder_path="x", commit_message="y"
    )


def test_the_command_prints_what_it_wrote(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    autoattack(run, 100, n=50)
    out = tmp_path / "out"
    args = ["export", str(run.path), "--to", str(out), "--name", "Net"]

    assert run_cli([*args, "--authors", "Ada", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert set(found["files"]) == FILES
    assert found["hub_url"] is None
    assert "not exactly the 397" in found["omitted"][0]
    assert run_cli(args) == 2
    assert "--force" in capsys.readouterr().err
    assert run_cli([*args, "--force"]) == 0
    said = capsys.readouterr().out
    assert "model_info/digits/Linf/Net.json" in said
    assert "not exported: AutoAttack at Linf:8/255" in said


def test_a_second_export_to_a_folder_waits_for_the_first(run: Run, tmp_path: Path) -> None:
    class Waiting(Exception):
        pass

    class StopsAtLog(SilentProgress):
        def log(self, text: str) -> None:
            raise Waiting(text)

    path = tmp_path / "out.lock"
    holder = {**vars(current_holder()), "host": "elsewhere", "token": "x"}
    path.write_text(json.dumps(holder))
    with pytest.raises(Waiting, match=r"out is locked by process .* on elsewhere"):
        bt.export_run(run, tmp_path / "out", progress=StopsAtLog())
    assert not (tmp_path / "out").exists()
    path.unlink()
    assert bt.export_run(run, tmp_path / "out", progress=SilentProgress()).files

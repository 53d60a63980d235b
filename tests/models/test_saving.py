"""`save_pretrained`, `push_to_hub` and `from_pretrained`, offline."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import huggingface_hub.hub_mixin
import pytest
import torch
from torch import nn

import buttress as bt
from buttress.errors import UserError
from buttress.models import Classifier

X = torch.rand(2, 3, 32, 32)
OWN_MODEL = "from torch import nn\ndef build(num_classes, image_size, in_channels, width=4):\n    return nn.Sequential(nn.Conv2d(in_channels, width, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, num_classes))\n"  # noqa: E501


def made(name: str, **options: Any) -> Classifier:
    return bt.create_model(
        name, num_classes=7, mean=(0.4, 0.5, 0.6), std=0.2, options=options, seed=3
    ).eval()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet_tiny", {}),
        ("resnet_tiny", {"activation": "silu"}),
        ("timm:resnet10t", {}),
        ("vit_tiny", {}),
    ],
)
def test_a_saved_model_comes_back(name: str, options: dict[str, Any], tmp_path: Path) -> None:
    model = made(name, **options)
    model.save_pretrained(tmp_path / "saved")
    for loaded in (
        bt.from_pretrained(tmp_path / "saved"),
        bt.load_model(tmp_path / "saved"),
        bt.from_pretrained(str(tmp_path / "saved")),
    ):
        assert torch.equal(loaded(X), model(X))
        assert (loaded.name, loaded.options) == (name, options)
        loaded.save_pretrained(tmp_path / "again")  # and once more
    assert torch.equal(bt.from_pretrained(tmp_path / "again")(X), model(X))
    files = {p.name for p in (tmp_path / "saved").iterdir()}
    assert files == {"model.safetensors", "buttress.json", "config.json", "README.md"}
    assert "bt.from_pretrained" in (tmp_path / "saved" / "README.md").read_text()


def test_a_model_of_your_own_keeps_its_code(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN_MODEL)
    model = made(f"{tmp_path / 'mine.py'}:build", width=6)
    model.save_pretrained(tmp_path / "saved")
    description = json.loads((tmp_path / "saved" / "buttress.json").read_text())
    assert (description["model"], description["model_args"]) == ("mine.py:build", {"width": 6})
    with pytest.raises(UserError, match="Code is only run when you name it yourself"):
        bt.from_pretrained(tmp_path / "saved")
    loaded = bt.load_model(tmp_path / "saved", model=f"{tmp_path / 'saved' / 'mine.py'}:build")
    assert torch.equal(loaded(X), model(X))


def test_the_mixin_uploads_what_is_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    uploaded: dict[str, Any] = {}

    class Api:
        def __init__(self, token: str | None = None) -> None:
            uploaded["token"] = token

        def create_repo(self, repo_id: str, private: bool | None, exist_ok: bool) -> Any:
            uploaded["private"] = private
            return type("Repository", (), {"repo_id": repo_id})

        def upload_folder(self, *, repo_id: str, folder_path: Path, **rest: Any) -> str:
            uploaded["files"] = {p.name: p.read_bytes() for p in Path(folder_path).iterdir()}
            uploaded["message"] = rest["commit_message"]
            return f"https://huggingface.co/{repo_id}"

    monkeypatch.setattr(huggingface_hub.hub_mixin, "HfApi", Api)
    model = made("resnet_tiny")
    address = model.push_to_hub("me/robust", private=True, token="t", commit_message="hello")
    assert address == "https://huggingface.co/me/robust"
    assert (uploaded["private"], uploaded["token"], uploaded["message"]) == (True, "t", "hello")

    def download(name: str, revision: str | None, allow_patterns: list[str]) -> str:
        assert (name, revision) == ("me/robust", "v1")
        for file, content in uploaded["files"].items():
            (tmp_path / file).write_bytes(content)
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert torch.equal(bt.from_pretrained("me/robust", revision="v1")(X), model(X))
    assert torch.equal(bt.load_model("hf:me/robust@v1")(X), model(X))


def test_a_module_without_a_name_is_refused(tmp_path: Path) -> None:
    net = nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 5))
    with pytest.raises(UserError, match=r"made by name .* 'Sequential'.*FILE\.py:FUNCTION"):
        bt.load_model(net).save_pretrained(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()
    with pytest.raises(UserError, match="OWNER/NAME"):
        bt.from_pretrained("no-owner")

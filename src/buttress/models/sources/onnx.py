"""An ONNX file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from buttress.models.core import Classifier
from buttress.models.load import wrap
from buttress.models.onnx import OnnxNetwork
from buttress.models.sources.core import SOURCES, Source, Wanted

NO_GRADIENTS = (
    "the model gives no gradients: only black-box attacks were possible, so the robust accuracy "
    "may be far too high"
)


@SOURCES.register("onnx", form="FILE.onnx")
class Onnx(Source):
    """A network in an ONNX file, for black-box attacks; it needs the extra ``onnx``."""

    def reads(self, what: str) -> bool:
        return Path(what).is_file() and Path(what).suffix.lower() == ".onnx"

    def open(self, what: str, wanted: Wanted) -> Classifier:
        wanted.refuse_model(what)
        net = OnnxNetwork(Path(what))
        usual = dict(wanted.usual)
        usual["in_channels"] = net.channels or usual["in_channels"]
        usual["image_size"] = net.image_size or usual["image_size"]
        found = wrap(net, replace(wanted, usual=usual))
        found.name, found.caveats = what, (NO_GRADIENTS,)
        return found

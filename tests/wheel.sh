#!/usr/bin/env bash
# Installs a wheel outside of the checkout, by the line of the README, and uses it as a new user would, in an empty
# directory with an empty home: quickstart, a model of one's own, a folder of images, export and reload.
# Usage: bash tests/wheel.sh PYTHON WHEEL
# QUICKSTART=quickstart runs the whole quickstart (minutes) in place of two runs of its smallest scale.
set -euo pipefail
python=$1
wheel=$(realpath "$2")
install=$(grep -m1 '^pip install ' "$(dirname "${BASH_SOURCE[0]}")/../README.md")
export PIP_CONSTRAINT=${PIP_CONSTRAINT:+$(realpath "$PIP_CONSTRAINT")}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
"$python" -m venv "$place/venv"
cd "$place"
mkdir dist home
cp "$wheel" dist
PATH=$place/venv/bin:$PATH
set -x
$install -qq

export HOME=$place/home XDG_CACHE_HOME=$place/home/cache
unset PYTHONPATH BUTTRESS_CACHE PIP_CONSTRAINT
version=$(buttress --version)
[[ $(basename "$wheel") == buttress-${version##* }-* ]]
buttress list models > models.txt
grep -q resnet_50 models.txt

# shellcheck disable=SC2086 # several words
buttress ${QUICKSTART:-study run quickstart --scale smoke --only architecture=ResNet --out results/quickstart}
[[ -n $(find results/quickstart -name index.html) ]]

buttress example mynet
buttress train --model mynet.py:mynet --data digits --recipe smoke-at --limit 60 --out runs/mynet
buttress evaluate runs/mynet --limit 10 --suite clean,pgd-linf

python - <<'END'
from pathlib import Path

from PIL import Image

import buttress as bt

for split in ("train", "val"):
    data = bt.load_dataset("digits", split=split)
    for digit in (3, 8):
        place = Path("mine", split, f"digit-{digit}")
        place.mkdir(parents=True)
        for number, image in enumerate(data.images[data.labels == digit][:12]):
            pixels = (255 * image).byte().permute(1, 2, 0).numpy()
            Image.fromarray(pixels).save(place / f"{number}.png")
END
mkdir elsewhere
mv runs elsewhere # a run is whole: it loads from another place, without the file of its model
rm mynet.py
buttress finetune elsewhere/runs/mynet --data folder:mine --recipe smoke-at --out elsewhere/runs/mine
buttress evaluate elsewhere/runs/mine --suite clean,pgd-linf
buttress report elsewhere/runs --out report
[[ -f report/index.html ]]

buttress export elsewhere/runs/mine --to exported
buttress evaluate exported --model exported/mynet.py:mynet --data folder:mine --split val --suite clean
python - <<'END'
import torch

import buttress as bt

x = bt.load_dataset("folder:mine", split="val").images
exported = bt.load_model("exported", model="exported/mynet.py:mynet")
assert torch.equal(exported(x), bt.load_model("elsewhere/runs/mine")(x))
END

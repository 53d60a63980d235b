"""How much accuracy weak attacks leave that strong ones take, on a published network.

python benchmarks/strength.py resnet2b.pth
"""

from __future__ import annotations

from typing import Any

import torch
from published import arguments, images, resnet2b

import buttress as bt
from buttress.attacks.call import How, create_attack, run_attack

# threat, then attacks with their arguments
ROWS: list[tuple[str, list[tuple[str, dict[str, Any]]]]] = [
    (
        "Linf:2/255",
        [("noise", {}), ("fgsm", {}), ("pgd", {"steps": 20}), ("gama", {"steps": 100}),
         ("apgd-ce", {}), ("apgd-t", {})],
    ),
    ("L1:5", [("pgd_dense_l1", {"steps": 20}), ("pgd", {"steps": 20}), ("apgd-ce", {})]),
    ("L1:12", [("pgd_dense_l1", {"steps": 20}), ("pgd", {"steps": 20}), ("apgd-ce", {})]),
]  # fmt: skip


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--images", type=int, default=300)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, (x, y) = resnet2b(args.checkpoint), images(args.images)
    how = How(args.seed, stop_when_broken=True)
    print(f"| threat | attack | robust accuracy, {len(x)} images | passes forward, backward |")
    print("| --- | --- | --- | --- |", flush=True)
    for threat, attacks in ROWS:
        for name, given in attacks:
            chosen = create_attack(name, **given)
            out = run_attack(chosen, model, x, y, bt.Threat.parse(threat), how=how)
            accuracy = 1 - float(out.broken.double().mean())
            label = name + (f" {given['steps']}" if given else "")
            meter = out.meter
            cost = f"{meter.forward.double().mean():.0f}, {meter.backward.double().mean():.0f}"
            print(f"| {threat} | {label} | {accuracy:.1%} | {cost} |", flush=True)


if __name__ == "__main__":
    main()

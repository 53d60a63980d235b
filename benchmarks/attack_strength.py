"""How much accuracy weak attacks leave that strong ones take, on a published network.

python benchmarks/attack_strength.py resnet2b.pth
"""

from __future__ import annotations

from typing import Any

import torch
from published import first_test_images, parser_for_resnet2b, resnet2b

import buttress as bt
from buttress.attacks.core import create_attack
from buttress.engine.options import AttackOptions
from buttress.engine.run import run_attack

# threat, then attacks with their arguments
ATTACKS_PER_THREAT: list[tuple[str, list[tuple[str, dict[str, Any]]]]] = [
    (
        "Linf:2/255",
        [("noise", {}), ("fgsm", {}), ("pgd", {"steps": 20}), ("gama", {"steps": 100}),
         ("apgd-ce", {}), ("apgd-t", {})],
    ),
    ("L1:5", [("pgd_dense_l1", {"steps": 20}), ("pgd", {"steps": 20}), ("apgd-ce", {})]),
    ("L1:12", [("pgd_dense_l1", {"steps": 20}), ("pgd", {"steps": 20}), ("apgd-ce", {})]),
]  # fmt: skip


def main() -> None:
    parser = parser_for_resnet2b(__doc__)
    parser.add_argument("--images", type=int, default=300)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, (x, y) = resnet2b(args.checkpoint), first_test_images(args.images)
    options = AttackOptions(args.seed, stop_when_fooled=True)
    print(f"| threat | attack | robust accuracy, {len(x)} images | passes forward, backward |")
    print("| --- | --- | --- | --- |", flush=True)
    for threat, attacks in ATTACKS_PER_THREAT:
        for name, arguments in attacks:
            attack = create_attack(name, **arguments)
            out = run_attack(attack, model, x, y, bt.Threat.parse(threat), options=options)
            accuracy = 1 - float(out.fooled.double().mean())
            label = name + (f" {arguments['steps']}" if arguments else "")
            meter = out.counter
            cost = f"{meter.forward.double().mean():.0f}, {meter.backward.double().mean():.0f}"
            print(f"| {threat} | {label} | {accuracy:.1%} | {cost} |", flush=True)


if __name__ == "__main__":
    main()

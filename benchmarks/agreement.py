"""Our AutoAttack beside the reference implementation, image by image, on a published network.

    python benchmarks/agreement.py resnet2b.pth

The reference is the package pyautoattack (in the dependency group bench). The table says how many
images each leaves, how many verdicts agree, and what each took.
"""

from __future__ import annotations

import time

import torch
from published import first_test_images, parser_for_resnet2b, resnet2b
from torch import Tensor, nn

import buttress as bt
from buttress.attacks.core import create_attack
from buttress.engine.options import AttackOptions
from buttress.engine.run import run_attack

THREATS = "Linf:2/255,Linf:8/255,L2:0.25,L1:5"


def reference(model: nn.Module, x: Tensor, y: Tensor, threat: bt.Threat, seed: int) -> Tensor:
    from pyautoattack import AutoAttack

    attack = AutoAttack(model, norm=threat.norm, eps=threat.eps, version="standard", seed=seed)
    found = attack.run_standard_evaluation(x, y)
    return found[0] if isinstance(found, tuple) else found


def ours(model: nn.Module, x: Tensor, y: Tensor, threat: bt.Threat, seed: int) -> Tensor:
    how = AttackOptions(seed, stop_when_fooled=True)
    return run_attack(create_attack("autoattack"), model, x, y, threat, options=how).x_adv


def main() -> None:
    parser = parser_for_resnet2b(__doc__)
    parser.add_argument("--images", type=int, default=500)
    parser.add_argument("--threats", default=THREATS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    model, (x, y) = resnet2b(args.checkpoint), first_test_images(args.images)
    print("| threat | reference leaves | ours leaves | verdicts agree | seconds: reference, ours |")
    print("| --- | --- | --- | --- | --- |", flush=True)
    for threat in map(bt.Threat.parse, args.threats.split(",")):
        left, seconds = [], []
        for attack in (reference, ours):
            started = time.perf_counter()
            x_adv = attack(model, x, y, threat, args.seed)
            seconds.append(time.perf_counter() - started)
            with torch.no_grad():
                left.append(model(x_adv).argmax(1) == y)
        agree = float((left[0] == left[1]).double().mean())
        counts = [f"{int(kept.sum())} of {len(x)}" for kept in left]
        times = ", ".join(f"{s:.0f}" for s in seconds)
        print(f"| {threat} | {' | '.join(counts)} | {agree:.1%} | {times} |", flush=True)


if __name__ == "__main__":
    main()

"""Square with and without forecasts: passes, seconds, and what is lost.

    python benchmarks/query_skipping.py --checkpoint resnet2b.pth=examples/resnet2b.py:ResNet2B

One process, one thread, images that a short attack leaves, 5,000 queries each.
"""

from __future__ import annotations

import time

import torch
from survivors import load_models, parse_model_arguments, robust_images

from buttress.attacks.losses import margin
from buttress.attacks.square.attack import Square
from buttress.bench import models as networks
from buttress.engine.batching import AttackResult
from buttress.engine.fast_model import prepare
from buttress.engine.run import AttackOptions, run_attack
from buttress.threats.norm_ball import Threat

IMAGES_PER_MODEL = {"small": 64, "slim": 6, "vit": 12}  # what takes a minute


def main() -> None:
    args = parse_model_arguments(__doc__)
    torch.set_num_threads(1)
    print("| network, threat | passes F, B | with forecasts | time | same point | margin gained |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, model in load_models(args):
        for threat in map(Threat.parse, networks.benchmark_model(name).threats):
            x, y = robust_images(model, args.data, threat, IMAGES_PER_MODEL[name])
            fast_model = prepare(model, x)
            fast_model.optimize_forward()
            fast_model.stay_in_float32()
            options, outs, seconds = AttackOptions(fast_model=fast_model, workers=1), [], []
            for skip_queries in (False, True):
                started = time.perf_counter()
                outs.append(
                    run_attack(Square(forecast=skip_queries), model, x, y, threat, options=options)
                )
                seconds.append(time.perf_counter() - started)
            with torch.no_grad():
                clean = margin(model(x), y)
            gains = [float((out.margin - clean).mean()) for out in outs]
            same = (outs[0].x_adv == outs[1].x_adv).flatten(1).all(1)
            cells = (
                *map(_format_passes, outs),
                f"{seconds[1] / seconds[0]:.2f}",
                f"{int(same.sum())} of {len(x)}",
                f"{gains[1] / gains[0]:.2%}",
            )
            print(f"| {name}, {threat} | {' | '.join(cells)} |", flush=True)


def _format_passes(out: AttackResult) -> str:
    return f"{out.counter.forward.double().mean():.0f}, {out.counter.backward.double().mean():.0f}"


if __name__ == "__main__":
    main()

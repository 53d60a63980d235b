"""Square with and without forecasts: passes, seconds, and what is lost.

    python benchmarks/forecasts.py --checkpoint resnet2b.pth=examples/resnet2b.py:ResNet2B

One process, one thread, images that a short attack leaves, 5,000 queries each.
"""

from __future__ import annotations

import time

import torch
from survivors import arguments, loaded, survivors

from buttress.attacks.call import How, run_attack
from buttress.attacks.loop import Outcome
from buttress.attacks.losses import margin
from buttress.attacks.prepare import prepare
from buttress.attacks.square import Square
from buttress.bench import networks
from buttress.threat import Threat

IMAGES = {"small": 64, "slim": 6, "vit": 12}  # what takes a minute


def main() -> None:
    args = arguments(__doc__)
    torch.set_num_threads(1)
    print("| network, threat | passes F, B | with forecasts | time | same point | margin gained |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, model in loaded(args):
        for threat in map(Threat.parse, networks.network(name).threats):
            x, y = survivors(model, args.data, threat, IMAGES[name])
            ready = prepare(model, x)
            ready.expect_queries()
            ready.stay_in_float32()
            how, outs, seconds = How(prepared=ready, workers=1), [], []
            for forecast in (False, True):
                started = time.perf_counter()
                outs.append(run_attack(Square(forecast=forecast), model, x, y, threat, how=how))
                seconds.append(time.perf_counter() - started)
            with torch.no_grad():
                clean = margin(model(x), y)
            gains = [float((out.margin - clean).mean()) for out in outs]
            same = (outs[0].x_adv == outs[1].x_adv).flatten(1).all(1)
            cells = (
                *map(_passes, outs),
                f"{seconds[1] / seconds[0]:.2f}",
                f"{int(same.sum())} of {len(x)}",
                f"{gains[1] / gains[0]:.2%}",
            )
            print(f"| {name}, {threat} | {' | '.join(cells)} |", flush=True)


def _passes(out: Outcome) -> str:
    return f"{out.meter.forward.double().mean():.0f}, {out.meter.backward.double().mean():.0f}"


if __name__ == "__main__":
    main()

"""Worker process of a distributed run: ``python -m buttress.training.worker RUN DEVICE``."""

from __future__ import annotations

import sys

from buttress.results.run import Run
from buttress.training.train import train_in_process


def main() -> None:
    out, device = sys.argv[1:]
    run = Run(out)
    train_in_process(run, run.spec, device)


if __name__ == "__main__":
    main()

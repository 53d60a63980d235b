"""The other processes of a run: ``python -m buttress.training.rank RUN DEVICE``."""

from __future__ import annotations

import sys

from buttress.records.run import Run
from buttress.training.train import take_part


def main() -> None:
    out, device = sys.argv[1:]
    run = Run(out)
    take_part(run, run.spec, device)


if __name__ == "__main__":
    main()

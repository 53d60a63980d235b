"""CPU seconds until a command answers: help, lists, mistakes, and the first attacked image.

    python benchmarks/startup.py --before TREE --out docs/measured/startup.md

``TREE`` is another checkout of this repository, measured in the same way. Seconds are user and
system time of the whole process, the least of the repeats, with one thread. The first call of a
list in a checkout makes the index that later ones read; it is not counted. A wheel has the index.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from buttress.system.files import write_text

EVALUATE = "evaluate resnet_tiny --data digits --limit 4 --suite clean,pgd-linf"
COMMANDS = {
    "`--help`": "--help",
    "`evaluate --help`": "evaluate --help",
    "`list models`": "list models",
    "a misspelt command": "evaluat",
    "an unknown model": "evaluate resnet10t --data digits",
    "an unknown suite": "evaluate resnet_tiny --data digits --suite quikstart",
    "a run that does not exist": "evaluate runs/nosuch --data digits",
    "`evaluate` of 4 images, all of it": EVALUATE,
}
EVENTS = {
    "first forward pass": "`evaluate` of 4 images, until the first forward pass",
    "first attacked image": "`evaluate` of 4 images, until the first are attacked",
}
COMMAND = "import sys; from buttress.cli.main import run; run(sys.argv[1:])"
# The same with the CPU time of events. Hooks are set when modules that come after torch are found.
TIMED_COMMAND = """
import atexit, importlib, json, sys, time

seconds = {}

def note(event):
    seconds.setdefault(event, time.process_time())

class Hooks:
    def find_spec(self, name, path=None, target=None):
        if name == "buttress.evaluation.evaluate":
            module = importlib.import_module("torch.nn.modules.module")
            module.register_module_forward_pre_hook(lambda *_: note("first forward pass"))
        if name == "buttress.evaluation.run_entry":
            engine = importlib.import_module("buttress.engine.run")
            run_attack = engine.run_attack

            def timed(*args, **options):
                result = run_attack(*args, **options)
                note("first attacked image")
                return result

            engine.run_attack = timed

sys.meta_path.insert(0, Hooks())
atexit.register(lambda: print(json.dumps(seconds), file=sys.stderr))
from buttress.cli.main import run
run(sys.argv[1:])
"""


def run_command(code: str, args: str, tree: Path, cache: str) -> tuple[float, str]:
    """CPU seconds of a command in a new process, and its last line on stderr."""
    env = {
        **os.environ, "PYTHONPATH": str(tree / "src"), "BUTTRESS_CACHE": cache,
        "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
    }  # fmt: skip
    before = _child_cpu_seconds()
    done = subprocess.run(
        [sys.executable, "-c", code, *args.split()], capture_output=True, text=True, env=env,
        check=False, cwd=cache,
    )  # fmt: skip
    return _child_cpu_seconds() - before, (done.stderr.strip().splitlines() or [""])[-1]


def _child_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def measure(tree: Path, repeats: int) -> dict[str, float]:
    """The least CPU seconds of each case."""
    with tempfile.TemporaryDirectory() as cache:
        for args in COMMANDS.values():  # the index, and files in the cache of the system
            run_command(COMMAND, args, tree, cache)
        found = {}
        for case, args in COMMANDS.items():
            found[case] = min(run_command(COMMAND, args, tree, cache)[0] for _ in range(repeats))
            print(f"{tree.name}: {case} {found[case]:.2f} s", file=sys.stderr)
        lines = [run_command(TIMED_COMMAND, EVALUATE, tree, cache)[1] for _ in range(repeats)]
    events = [json.loads(line) for line in lines]
    return {**found, **{text: min(e[name] for e in events) for name, text in EVENTS.items()}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--before", type=Path, help="another checkout to compare with")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the table here too")
    args = parser.parse_args()
    trees = {"CPU seconds": Path(__file__).resolve().parents[1]}
    if args.before:
        trees = {"before": args.before.resolve(), "now": trees["CPU seconds"]}
    columns = {name: measure(tree, args.repeats) for name, tree in trees.items()}
    rows = [f"| command | {' | '.join(columns)} |", f"| --- |{' ---: |' * len(columns)}"]
    for case in next(iter(columns.values())):
        cells = " | ".join(f"{column[case]:.2f}" for column in columns.values())
        rows.append(f"| {case} | {cells} |")
    table = "\n".join(rows) + "\n"
    print(table)
    if args.out:
        write_text(args.out, table)


if __name__ == "__main__":
    main()

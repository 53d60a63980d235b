"""The examples of "adding" in the documentation are real: each runs and registers what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = (Path(__file__).parents[1] / "docs" / "adding.md").read_text()
BLOCKS = re.findall(r"```python\n(.+?)```", PAGE, flags=re.S)
RUN = """
import sys, types
import buttress.analysis, buttress.attacks, buttress.data, buttress.models, buttress.training
for number, block in enumerate(sys.stdin.read().split("\\0")):
    module = types.ModuleType(f"example_{number}")
    sys.modules[module.__name__] = module
    exec(compile(block, module.__name__, "exec"), vars(module))
"""


def test_every_example_runs() -> None:
    assert len(BLOCKS) >= 5
    done = subprocess.run(
        [sys.executable, "-c", RUN], input="\0".join(BLOCKS), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr

"""Commands and options that users of other tools type, and what they are called here."""

from __future__ import annotations

from collections.abc import Collection

import click

from buttress.registry import close_names_text

# Commands, also within a group, and what to type. Names that are near to a command need no entry.
COMMANDS = {
    "help": "buttress --help", "version": "buttress --version", "info": "buttress --help",
    "attack": "buttress evaluate MODEL --data NAME --suite pgd-linf",
    "autoattack": "buttress evaluate MODEL --data NAME --suite autoattack",
    "benchmark": "buttress evaluate MODEL --data NAME --suite robustbench-linf",
    "test": "buttress evaluate MODEL --data NAME", "eval": "buttress evaluate MODEL --data NAME",
    "val": "buttress evaluate MODEL --data NAME", "score": "buttress evaluate MODEL --data NAME",
    "fit": "buttress train", "fine-tune": "buttress finetune", "tune": "buttress finetune",
    "diagnose": "buttress doctor", "check": "buttress doctor",
    "download": "buttress data get NAME", "fetch": "buttress data get NAME",
    "ls": "buttress list models", "demo": "buttress quickstart", "init": "buttress quickstart",
    "push": "buttress export RUN --to FOLDER --push-to-hub OWNER/NAME",
    "leaderboard": "buttress report FOLDER",
    "site": "buttress report FOLDER --site",
    **{kind: f"buttress list {kind}" for kind in (
        "models", "zoo", "attacks", "datasets", "recipes", "suites", "threats", "analyses",
        "studies", "searches", "corruptions", "objectives", "checks",
    )},
}  # fmt: skip
DATA_COMMANDS = {"list": "buttress list datasets", "ls": "buttress list datasets"}
# Options, without dashes and with ``_`` as ``-``, and what to type.
OPTIONS = {
    "attack": "--suite", "attacks": "--suite", "attacks-to-run": "--suite", "epsilon": "--eps",
    "epsilons": "--eps", "threat-model": "--threat", "n-examples": "--limit", "n-ex": "--limit",
    "num-examples": "--limit", "num-samples": "--limit", "max-samples": "--limit", "n": "--limit",
    "subset": "--limit", "dataset": "--data", "data-dir": "--data folder:PATH",
    "data-path": "--data folder:PATH", "root": "--data folder:PATH", "bs": "--batch-size",
    "gpu": "--device cuda", "gpus": "--device cuda", "cuda": "--device cuda",
    "cpu": "--device cpu", "arch": "--model", "architecture": "--model", "model-name": "--model",
    "output": "--out", "output-dir": "--out", "save-dir": "--out", "config": "--recipe",
    "epochs": "--set epochs=10", "lr": "--set optimizer.lr=0.1", "b": "--batch-size",
    "learning-rate": "--set optimizer.lr=0.1", "wd": "--set optimizer.weight_decay=5e-4",
    "weight-decay": "--set optimizer.weight_decay=5e-4", "batch-size": "--set batch_size=128",
    "checkpoint": "the file in place of MODEL, and --model for its architecture",
    "ckpt": "the file in place of MODEL, and --model for its architecture",
    "weights": "the file in place of MODEL, and --model for its architecture",
    "resume": "the same command again: it resumes by itself", "num-workers": "--workers",
    "j": "--workers", "verbose": "nothing: progress is on stderr",
    "steps": "--suite with a YAML file, whose entries have `args: {steps: 20}`",
}  # fmt: skip
# A call of each command that works, or that shows its form.
EXAMPLES = {
    "list": "buttress list models --tag tiny", "example": "buttress example mynet",
    "data get": "buttress data get cifar10",
    "train": "buttress train --model resnet_tiny --data digits --recipe quickstart-at "
    "--out runs/r1 (`buttress list recipes` shows all recipes)",
    "finetune": "buttress finetune zoo:vit_mini --data folder:PATH --recipe quickstart-at "
    "--out runs/tuned",
    "evaluate": "buttress evaluate zoo:mlp_mixer_mini --data cifar10_sample --suite pgd-linf",
    "compare": "buttress compare runs/a runs/b",
    "doctor": "buttress doctor zoo:mlp_mixer_mini --data cifar10_sample",
    "analyze": "buttress analyze sparsity runs/r1",
    "study plan": "buttress study plan table1", "study run": "buttress study run table1",
    "study status": "buttress study status table1", "study report": "buttress study report table1",
    "search": "buttress search digits-depth", "export": "buttress export runs/r1 --to exported",
    "trust": "buttress trust runs/r1", "report": "buttress report runs --out report",
    "bench table": "buttress bench table FILE",
}  # fmt: skip


def explain_usage(error: click.UsageError) -> str:
    """An example of the command, if its arguments do not fit; options get their name here."""
    if error.ctx is None:
        return ""
    path = error.ctx.command_path.partition(" ")[2]
    if isinstance(error, click.NoSuchOption):
        options = [name for p in error.ctx.command.params for name in p.opts]
        if advice := option_advice(error.option_name, options):
            error.message = f"{error.message.removesuffix('.')}{advice}"  # type: ignore[misc]
            error.possibilities = None  # type: ignore[misc]
        return ""
    is_missing = isinstance(error, click.MissingParameter)
    if not is_missing and not error.message.startswith("Got unexpected extra argument"):
        return ""
    return EXAMPLES.get(path, "")


def command_advice(group: str, name: str, commands: Collection[str]) -> str:
    """``; did you mean ...?``: what to type in place of a command that does not exist."""
    known = {**COMMANDS, **(DATA_COMMANDS if group == "data" else {})}
    if name in known:
        return f"; did you mean `{known[name]}`?"
    return close_names_text(name, commands)


def option_advice(name: str, options: Collection[str]) -> str:
    """What to type in place of an option that does not exist; empty if nobody knows."""
    ours = OPTIONS.get(name.lstrip("-").replace("_", "-").lower(), "")
    if not ours or (ours.startswith("--") and ours.split()[0] not in options):
        return ""
    return f"; write {ours}"

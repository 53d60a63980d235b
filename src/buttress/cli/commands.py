"""The group of all commands; each is imported when it is used."""

from __future__ import annotations

import importlib

import click

from buttress import __version__
from buttress.cli.options import SuggestingGroup

# command -> (module, help text); a module is imported when its command is called.
COMMANDS = {
    "quickstart": ("quickstart", "Train, attack and analyze small models on bundled data."),
    "list": ("listing", "List models, attacks, objectives, datasets, recipes, suites ..."),
    "example": ("example", "Write an example model to a Python file."),
    "data": ("data", "Download, verify and convert datasets."),
    "train": ("train", "Train a model with a recipe (standard or adversarial training)."),
    "finetune": ("finetune", "Fine-tune trained weights on another dataset."),
    "evaluate": ("evaluate", "Evaluate clean, robust and worst-case robust accuracy."),
    "compare": ("compare", "Test whether two runs differ significantly."),
    "doctor": ("doctor", "Check whether the robust accuracy of a model can be trusted."),
    "analyze": ("analyze", "Analyze trained models: sparsity, Lipschitz constants, landscapes ..."),
    "study": ("study", "Plan, run and report studies: grids of runs that answer a question."),
    "search": ("search", "Search a grid for the most robust models within a budget."),
    "bench": ("bench", "Benchmark attacks and training against other installed libraries."),
    "export": ("export", "Export weights, a model card and leaderboard records."),
    "trust": ("trust", "Allow the Python code that comes with a run to be executed."),
    "report": ("report", "Write an HTML report about runs."),
}
ALIASES = {"analyse": "analyze"}


class LazyGroup(SuggestingGroup):
    """A group whose commands are imported only when they are used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        name = ALIASES.get(name, name)
        if name not in COMMANDS:
            return None
        module = importlib.import_module(f"buttress.cli.{COMMANDS[name][0]}")
        command: click.Command = module.command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="buttress")
def main() -> None:
    """Train, attack and compare image classifiers for adversarial robustness."""

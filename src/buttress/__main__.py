"""``python -m buttress``: the command line, also where its folder is not in the PATH."""

from buttress.cli.main import run

run()

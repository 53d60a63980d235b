#!/usr/bin/env bash
# Installs a wheel outside of the checkout and uses it as a new user would: empty home, empty cache.
# Usage: bash tests/wheel.sh PYTHON WHEEL
set -euo pipefail
python=$1
wheel=$(realpath "$2")
export PIP_CONSTRAINT=${PIP_CONSTRAINT:+$(realpath "$PIP_CONSTRAINT")}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
"$python" -m venv "$place/venv"
"$place/venv/bin/python" -m pip install -qq "$wheel"

cd "$place"
mkdir home
export HOME=$place/home XDG_CACHE_HOME=$place/home/cache
unset PYTHONPATH BUTTRESS_CACHE
buttress=$place/venv/bin/buttress
set -x
"$buttress" --version
"$buttress" list models > models.txt
grep -q resnet_50 models.txt
"$buttress" evaluate resnet_tiny --data digits --limit 1 --suite clean,pgd-linf

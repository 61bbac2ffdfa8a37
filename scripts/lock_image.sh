#!/bin/sh
# Resolves the image's packages anew into scripts/image.lock. Needs uv; further arguments are passed on to it,
# such as --upgrade or --upgrade-package NAME.
set -eu
cd "$(dirname "$0")/.."
exec uv pip compile pyproject.toml scripts/image.in --quiet --universal --python-version 3.10 --generate-hashes \
    --no-annotate --custom-compile-command scripts/lock_image.sh --output-file scripts/image.lock "$@"

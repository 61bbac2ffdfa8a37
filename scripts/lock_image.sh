#!/bin/sh
# Resolves the image's packages anew into scripts/image.lock, and those of each extra that the image can have into
# scripts/image-EXTRA.lock, in versions that go together. Needs uv; further arguments are passed on to it, such as
# --upgrade or --upgrade-package NAME.
set -eu
cd "$(dirname "$0")/.."
options="--quiet --universal --python-version 3.10 --generate-hashes --no-annotate"
options="$options --custom-compile-command scripts/lock_image.sh"
uv pip compile pyproject.toml scripts/image.in $options --output-file scripts/image.lock "$@"

constraints="--constraint scripts/image.lock"
for extra in otel sources tls; do
    lock=scripts/image-$extra.lock
    sed -n "s/^$extra = \[\(.*\)\]/\1/p" pyproject.toml | grep -o '"[^"]*"' | tr -d '"' |
        uv pip compile - $options $constraints --output-file "$lock" "$@"
    constraints="$constraints --constraint $lock"
done

#!/bin/sh
# Builds the image with its base pinned by digest, and with labels that say what it was made from:
#
#   scripts/build_image.sh --tag modelserver [OPTIONS of `docker build`]
#
# BASE is the base image, ENGINE another command than docker, and PULL=never takes the base that is there.
set -eu
cd "$(dirname "$0")/.."
engine=${ENGINE:-docker}
base=${BASE:-$(sed -n 's/^ARG BASE=//p' Dockerfile)}

[ "${PULL:-}" = never ] || $engine pull --quiet "$base" >&2
digest=$($engine image inspect --format '{{if .RepoDigests}}{{index .RepoDigests 0}}{{end}}' "$base")
digest=${digest##*@}
if [ -z "$digest" ]; then
    echo "$base has no digest: it was not pulled" >&2
    exit 1
fi
name=${base%@*}
case ${name##*/} in *:*) repository=${name%:*} ;; *) repository=$name ;; esac
commit=$(git rev-parse HEAD)
[ -z "$(git status --porcelain --untracked-files=no)" ] || commit="$commit-dirty"

label=org.opencontainers.image
exec $engine build \
    --build-arg "BASE=$repository@$digest" \
    --label "$label.base.name=$name" \
    --label "$label.base.digest=$digest" \
    --label "$label.version=$(sed -n 's/^__version__ = "\(.*\)"/\1/p' app/modelserver/__init__.py)" \
    --label "$label.revision=$commit" \
    --label "$label.created=$(date -u +%Y-%m-%dT%H:%M:%SZ)" \
    "$@" .

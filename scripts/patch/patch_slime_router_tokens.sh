#!/usr/bin/env bash
# Makes a checkout of Slime v0.3.0 return token ids, logprobs and meta info from its OpenAI-compatible adapter.
#
#   SLIME_DIR=/path/to/slime bash scripts/patch/patch_slime_router_tokens.sh [--check | --revert]
#
# SLIME_DIR is by default `slime` beside the scripts folder. Needs Python 3.11 or newer and no packages, so it can
# run before anything is installed; PYTHON names another interpreter.
set -euo pipefail

root="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)"
slime_dir="${SLIME_DIR:-$root/slime}"
python="${PYTHON:-$(command -v python3 || true)}"

if [ -z "$python" ]; then
  echo "patch_slime_router_tokens: no python3 found; install Python 3.11 or newer, or name one with PYTHON=..." >&2
  exit 2
fi
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  echo "patch_slime_router_tokens: $python is older than Python 3.11; name a newer one with PYTHON=..." >&2
  exit 2
fi
PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}" PYTHONDONTWRITEBYTECODE=1 \
  exec "$python" -m slime_bridge.cli patch-slime "$slime_dir" "$@"

#!/usr/bin/env bash
# Makes or updates a local virtual environment; quick and silent when it is up to date.
#   scripts/python-env.sh          .venv from tools/requirements.txt
#   scripts/python-env.sh clients  .venv-clients from tools/requirements-clients.txt
#   scripts/python-env.sh golden   .venv-golden from tools/requirements-golden.txt
set -euo pipefail
cd "$(dirname "$0")/.."
suffix=${1:+-$1}
venv=.venv$suffix
requirements=tools/requirements$suffix.txt
pip_options=(--no-deps)
[ "$suffix" != -golden ] || pip_options=()

wanted="$(python3 --version) $(sha256sum <"$requirements")"
if [ -x "$venv/bin/python" ] && [ "$(cat "$venv/stamp" 2>/dev/null)" = "$wanted" ]; then exit 0; fi
echo "installing $requirements into $venv"
rm -rf "$venv"
python3 -m venv "$venv"
"$venv/bin/pip" install --quiet --disable-pip-version-check "${pip_options[@]}" -r "$requirements"
echo "$wanted" >"$venv/stamp"

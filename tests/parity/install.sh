#!/usr/bin/env bash
# Makes the environment of `make parity`: tests/parity/install.sh PYTHON FOLDER.
# Tundish itself comes from this checkout by its path, not as a copy: the tests always see the
# sources and the Rust core that `make build` left, and the core (abi3) serves this Python too.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=$1 venv=$2
suits() { "$python" -c 'import sys, ensurepip; sys.exit(sys.version_info[:2] != (3, 13))' 2>/dev/null; }
# pyenv's python3.13 does nothing while another version is chosen.
suits || export PYENV_VERSION=3.13
if ! suits; then
  echo "Missing: CPython 3.13, the one that dataloader-rs 0.2.0 and PyTorch 2.13 are compared on."
  echo "$python is not it. Install it (it must have its venv module), or say where it is:"
  echo "  make parity PYTHON313=/path/to/python3.13"
  exit 1
fi
"$python" -m venv "$venv"
"$venv/bin/python" -m pip install -q -r tests/parity/requirements.txt
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
printf '%s\n' "$PWD/service" "$PWD/clients" >"$site/tundish-checkout.pth"

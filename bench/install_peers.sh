#!/usr/bin/env bash
# Puts the peers into environments of their own: PyTorch and tensorsocket beside this Python, dataloader-rs
# where its wheels need CPython 3.13. Without a python3.13 that side is left out of the table.
set -euo pipefail
cd "$(dirname "$0")"
python3 -m venv .venv-peers
.venv-peers/bin/pip install -q -r peers.txt
if python313=$(command -v python3.13) && "$python313" -c '' 2>/dev/null; then
  "$python313" -m venv .venv-dlrs
  .venv-dlrs/bin/pip install -q numpy dataloader-rs==0.2.0
else
  echo "python3.13 not found: the table goes without dataloader-rs"
fi

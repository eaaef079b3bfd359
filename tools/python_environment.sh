#!/usr/bin/env bash
# Makes a Python environment with packages of PyPI, unless it is there and its list has not changed.
#
#   tools/python_environment.sh FOLDER REQUIREMENTS.txt
set -euo pipefail
folder=$1 list=$2
cmp -s "$list" "$folder/requirements.txt" && exit
rm -rf "$folder"
python3 -m venv "$folder"
# Several times as fast as pip where gigabytes are unpacked.
"$folder/bin/pip" install --quiet uv==0.9.8
"$folder/bin/uv" pip install --quiet --python "$folder/bin/python" -r "$list"
cp "$list" "$folder/requirements.txt"

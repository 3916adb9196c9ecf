#!/bin/sh
# quietly.sh LOG WHAT COMMAND...: prints WHAT, and runs the command with its output in the file LOG. If the command
# fails, it prints the last lines of LOG and its path.
set -eu
log=$1 what=$2
shift 2

echo "$what" >&2
mkdir -p "$(dirname "$log")"
"$@" >"$log" 2>&1 && exit
status=$?
tail -n 25 "$log" >&2
echo "failed: $what. The complete output is in $log." >&2
exit "$status"

#!/bin/sh
# quietly.sh LOG WHAT COMMAND...: says in one line what is done, and runs the command with all that it prints in the
# file LOG. Where the command fails, its last lines follow, and the name of the file.
set -eu
log=$1 what=$2
shift 2

echo "$what" >&2
mkdir -p "$(dirname "$log")"
"$@" >"$log" 2>&1 && exit
status=$?
tail -n 25 "$log" >&2
echo "failed: $what. All that it printed is in $log." >&2
exit "$status"

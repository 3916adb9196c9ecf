#!/bin/sh
# vulncheck.sh GOVULNCHECK: fails if the code calls a function with a known vulnerability. It also fails if the database
# cannot be reached, so that a missing check does not pass as a good one. Environment variables:
#
#   VULNDB  URL of the database, such as a mirror's or file:///folder; default: https://vuln.go.dev; or offline, to skip
#           the check
#   GO      the go command
set -eu
cd "$(dirname "$0")/.."

if [ "${VULNDB:-}" = offline ]; then
	echo 'vulnerabilities: NOT CHECKED, because of VULNDB=offline' >&2
	exit 0
fi
database=${VULNDB:-https://vuln.go.dev}
${GO:-go} run "$1" -db "$database" ./... || {
	echo "vulnerabilities: see the findings above. If $database cannot be reached, give a mirror with VULNDB=URL, or skip the check with VULNDB=offline" >&2
	exit 1
}

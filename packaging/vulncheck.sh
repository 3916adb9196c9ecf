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
	echo 'vulnerabilities: NOT CHECKED, for VULNDB=offline says so' >&2
	exit 0
fi
database=${VULNDB:-https://vuln.go.dev}
${GO:-go} run "$1" -db "$database" ./... || {
	echo "vulnerabilities: one is told above, or nothing was checked. Where $database cannot be reached, name a mirror with VULNDB=URL, or say VULNDB=offline" >&2
	exit 1
}

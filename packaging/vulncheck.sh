#!/bin/sh
# vulncheck.sh GOVULNCHECK: looks whether a known vulnerability is in what is built, as far as it is called. A database that
# cannot be reached is a failure: what was not looked at is not known to be good. From the environment:
#
#   VULNDB  offline says that nothing is to be looked at; else the database, such as a mirror's address or file:///folder;
#           https://vuln.go.dev by default
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

#!/bin/sh
# Formats, vets, lints and tests the packages with Go files that differ from a commit: make check. GO is the Go command, SINCE the
# commit (default: HEAD), and $1 the module of golangci-lint with its version.
set -eu
since=${SINCE:-HEAD}
slow='appliance/(cmd/attestd|drills)' # their tests start hundreds of daemons, which takes minutes

files=$(git diff --name-only --diff-filter=d "$since" -- '*.go'; git ls-files --others --exclude-standard -- '*.go')
files=$(printf '%s\n' "$files" | grep -v '/testdata/' | sort -u || true)
if [ -z "$files" ]; then
	echo "check: no Go files have changed since $since"
	exit 0
fi
# shellcheck disable=SC2086 # names of Go files have no spaces
unformatted=$(gofmt -l $files)
if [ -n "$unformatted" ]; then
	printf 'check: not formatted; run gofmt -w on:\n%s\n' "$unformatted"
	exit 1
fi
packages=$(for f in $files; do dirname "./$f"; done | sort -u)
tested=$(printf '%s\n' "$packages" | grep -Evx "./$slow" || true)

linter=bin/$(basename "$1" | tr @ -)
if [ ! -x "$linter" ]; then
	echo "check: building golangci-lint (only the first time)"
	GOBIN=$PWD/bin/tools "$GO" install "$1"
	mv bin/tools/golangci-lint "$linter"
fi
echo "check: $(echo "$packages" | tr '\n' ' ')"
# shellcheck disable=SC2086
"$GO" vet $packages
# shellcheck disable=SC2086
"$linter" run $packages
if [ "$tested" != "$packages" ]; then
	echo "check: skipping the tests of appliance/cmd/attestd and appliance/drills, which take minutes; run them with: make test"
fi
if [ -n "$tested" ]; then
	# shellcheck disable=SC2086
	"$GO" test -skip '^TestDrill' $tested
fi

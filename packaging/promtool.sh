#!/bin/sh
# Puts promtool, which tests the alerts, into bin/promtool if this machine does not have it. It extracts promtool from
# the distribution's package. It does not install the package, because that would start Prometheus. It does not need
# root.
set -eu
cd "$(dirname "$0")/.."

if [ -x bin/promtool ] || command -v promtool >/dev/null 2>&1; then exit; fi

fail() {
	echo "promtool.sh: $1; the alerts are not tested. Install promtool (Debian: promtool or prometheus; Fedora: golang-github-prometheus)" >&2
	rm -rf "$dir"
	exit 0
}

dir=$(mktemp -d)
chmod 755 "$dir" # apt downloads as its own user
mkdir -p bin
if command -v apt-get >/dev/null 2>&1; then
	# A separate package since Debian 13.
	(cd "$dir" && { apt-get -qq download promtool || apt-get -qq download prometheus; } >log 2>&1) || fail "apt-get download prometheus: $(tail -n 1 "$dir/log")"
	dpkg-deb --fsys-tarfile "$dir"/prom*.deb | tar -x -C "$dir" ./usr/bin/promtool || fail "there is no promtool in what apt-get downloaded"
elif command -v dnf >/dev/null 2>&1; then
	dnf -q download --destdir "$dir" golang-github-prometheus >"$dir/log" 2>&1 || fail "dnf download: $(tail -n 1 "$dir/log")"
	(cd "$dir" && rpm2cpio ./*.rpm | cpio --quiet -idm ./usr/bin/promtool)
else
	fail "neither apt-get nor dnf here"
fi
mv "$dir/usr/bin/promtool" bin/promtool
rm -rf "$dir"

#!/bin/sh
# Installs what building attestd needs and this machine lacks, with apt or dnf; with the word test, also what its
# tests need, and with packages, what testing its packages needs. Says what it does; does nothing and says nothing
# when all is there.
set -eu

missing=
need() { # need COMMAND-OR-FILE DEBIAN-PACKAGE FEDORA-PACKAGE
	for place in $1; do
		if command -v "$place" >/dev/null 2>&1 || [ -e "$place" ]; then return; fi
	done
	if command -v apt-get >/dev/null 2>&1; then missing="$missing $2"; else missing="$missing $3"; fi
}

need gcc gcc gcc
need /usr/include/stdlib.h libc6-dev glibc-devel
need softhsm2-util softhsm2 softhsm
need "/usr/lib/softhsm/libsofthsm2.so /usr/lib64/pkcs11/libsofthsm2.so /usr/lib64/softhsm/libsofthsm.so" softhsm2 softhsm
need curl curl curl
need npm npm nodejs-npm
if [ "${1:-}" = test ]; then
	need "chromium chromium-browser" chromium chromium
	need "/usr/share/fonts/truetype/dejavu /usr/share/fonts/dejavu-sans-fonts" fonts-dejavu-core dejavu-sans-fonts
fi

if [ "${1-}" = packages ]; then
	need readelf binutils binutils
	need systemd-analyze systemd systemd
	need systemd-nspawn systemd-container systemd-container
	need debootstrap debootstrap debootstrap
	need lintian lintian lintian
	need rpm rpm rpm
	need rpm2cpio rpm2cpio rpm
	need cpio cpio cpio
	need rpmsign rpm rpm-sign
	need rpmlint rpmlint rpmlint
	need shellcheck shellcheck ShellCheck
	need gpg gpg gnupg2
	need gpg-agent gpg-agent gnupg2
fi

[ -n "$missing" ] || exit 0

as_root=
if [ "$(id -u)" != 0 ]; then
	as_root=sudo
	command -v sudo >/dev/null 2>&1 || {
		echo "make deps: missing:$missing. Install them as root, then try again." >&2
		exit 1
	}
fi

echo "make deps: installing$missing" >&2
if command -v apt-get >/dev/null 2>&1; then
	$as_root apt-get -qq update >&2
	# shellcheck disable=SC2086 # a list of packages
	$as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends $missing >&2
elif command -v dnf >/dev/null 2>&1; then
	# shellcheck disable=SC2086
	$as_root dnf -q -y install $missing >&2
else
	echo "make deps: neither apt-get nor dnf here. Install these by your system's means:$missing" >&2
	exit 1
fi

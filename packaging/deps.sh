#!/bin/sh
# Installs missing packages for building attestd, with apt or dnf. With the argument test, it also installs the packages
# for the tests; with build-packages, image, packages or fresh, those for `make packages`, `make image`,
# `make test-packages` or `make test-fresh`. If Go is older than go.mod requires, it downloads that version into
# bin/toolchain. It prints each step. If all packages are installed, it prints nothing.
set -eu
cd "$(dirname "$0")/.."

go=${GO:-go}
missing=
need() { # need "COMMAND-OR-FILE ..." DEBIAN-PACKAGE FEDORA-PACKAGE; a file finds root's programs in /sbin, too
	for place in $1; do
		if command -v "$place" >/dev/null 2>&1 || [ -e "$place" ]; then return; fi
	done
	if command -v apt-get >/dev/null 2>&1; then package=$2; else package=$3; fi
	case "$missing " in *" $package "*) ;; *) missing="$missing $package" ;; esac
}

need gcc gcc gcc
need /usr/include/stdlib.h libc6-dev glibc-devel
need softhsm2-util softhsm2 softhsm
need "/usr/lib/softhsm/libsofthsm2.so /usr/lib64/pkcs11/libsofthsm2.so /usr/lib64/softhsm/libsofthsm.so" softhsm2 softhsm
need curl curl curl
need "$go" golang-go golang
need "/etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt" ca-certificates ca-certificates
need node nodejs /usr/bin/node # their names differ between Fedora releases, and dnf accepts file names
need npm npm /usr/bin/npm
if [ "${1-}" = test ]; then
	need "chromium chromium-browser" chromium chromium
	need strace strace strace
	need p11-kit p11-kit p11-kit
	need "/usr/libexec/p11-kit/p11-kit-server /usr/lib/*/p11-kit/p11-kit-server" p11-kit p11-kit-server
	need "/usr/lib/*/pkcs11/p11-kit-client.so /usr/lib64/pkcs11/p11-kit-client.so" p11-kit-modules p11-kit-server
	need "/usr/share/fonts/truetype/dejavu /usr/share/fonts/dejavu-sans-fonts" fonts-dejavu-core dejavu-sans-fonts
	need python3 python3 python3
	need shellcheck shellcheck ShellCheck
	need systemd-analyze systemd systemd
	need fusermount3 fuse3 fuse3
	need "losetup /sbin/losetup" mount util-linux
	need "mkfs.ext4 /sbin/mkfs.ext4" e2fsprogs e2fsprogs
	need "rsyslogd /usr/sbin/rsyslogd" rsyslog rsyslog
	need "/usr/lib/*/rsyslog/lmnsd_gtls.so /usr/lib64/rsyslog/lmnsd_gtls.so" rsyslog-gnutls rsyslog-gnutls
	need "/usr/lib/*/rsyslog/lmnsd_ossl.so /usr/lib64/rsyslog/lmnsd_ossl.so" rsyslog-openssl rsyslog-openssl
	need "logrotate /usr/sbin/logrotate" logrotate logrotate
	need "/usr/lib/postgresql/*/bin/initdb initdb" postgresql /usr/bin/initdb
	need "/usr/lib/postgresql/*/bin/pg_basebackup pg_basebackup" postgresql /usr/bin/pg_basebackup
	need "pgbouncer /usr/sbin/pgbouncer" pgbouncer pgbouncer
fi

if [ "${1-}" = fresh ]; then
	need debootstrap debootstrap debootstrap
fi

case ${1-} in
build-packages | packages)
	need readelf binutils binutils
	need rpmbuild rpm rpm-build
	;;
esac
case ${1-} in
image | packages)
	need mmdebstrap mmdebstrap mmdebstrap
	need buildah buildah buildah
	;;
esac

if [ "${1-}" = packages ]; then
	need shellcheck shellcheck ShellCheck
	need systemd-analyze systemd systemd
	need systemd-nspawn systemd-container systemd-container
	need debootstrap debootstrap debootstrap
	need "losetup /sbin/losetup" mount util-linux
	need "mkfs.ext4 /sbin/mkfs.ext4" e2fsprogs e2fsprogs
	need lintian lintian lintian
	need rpm rpm rpm
	need rpm2cpio rpm2cpio rpm
	need cpio cpio cpio
	need rpmsign rpm rpm-sign
	need rpmlint rpmlint rpmlint
	need podman podman podman
	need gpg gpg gnupg2
	need gpg-agent gpg-agent gnupg2
fi

install() { # install PACKAGES: as root, with sudo, or by printing the line for root
	if command -v apt-get >/dev/null 2>&1; then
		line="DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $1"
		case " $1 " in *" postgresql "*) # stops Debian from creating and starting a database; the tests make their own
			conf=/etc/postgresql-common/createcluster.d/attestd.conf
			line="mkdir -p ${conf%/*} && echo create_main_cluster=false >$conf && $line && rm $conf"
			;;
		esac
		line="apt-get update && $line"
	elif command -v dnf >/dev/null 2>&1; then
		line="dnf install -y $1"
	else
		echo "make deps: neither apt-get nor dnf is installed. Install these packages with your package manager, then run make again: $1" >&2
		return 1
	fi
	if [ "$(id -u)" = 0 ]; then
		sh packaging/quietly.sh bin/deps.log "make deps: installing $1" sh -c "$line" && return
	elif command -v sudo >/dev/null 2>&1; then
		sh packaging/quietly.sh bin/deps.log "make deps: installing, by sudo, $1" sudo sh -c "$line" && return
	fi
	printf 'make deps: packages are missing. Run this line as root, then run make again:\n%s\n' "$line" >&2
	return 1
}

# Since 1.21, the go command itself downloads the Go version of go.mod, unless this is disabled, as on Fedora. toolchain
# does the same for other go commands. It downloads the same module from the same proxy, with the same checksum
# database.
toolchain() {
	if GOTOOLCHAIN=local "$go" list -m >/dev/null 2>&1; then return; fi
	asked=$(sed -n 's/^toolchain //p' go.mod)
	module=golang.org/toolchain@v0.0.1-$asked.$(elsewhere env GOHOSTOS)-$(elsewhere env GOHOSTARCH)
	sh packaging/quietly.sh bin/toolchain.log "make deps: fetching $asked (80 MB), since $(elsewhere env GOVERSION) is older than go.mod asks" \
		env GOTOOLCHAIN=local GOFLAGS= sh -c 'cd / && "$0" mod download "$1"' "$go" "$module"
	root=$(elsewhere env GOMODCACHE)/$module
	find "$root/bin" "$root/pkg/tool" -type f -exec chmod +x {} + # files of a module are not executable
	ln -sfn "$root/bin" bin/toolchain
}

elsewhere() { # elsewhere ARGUMENTS: runs go outside this module, because an old go may not understand go.mod
	(cd / && GOTOOLCHAIN=local "$go" "$@")
}

[ -z "$missing" ] || install "${missing# }"
toolchain

#!/bin/sh
# Builds dist/attestd_VERSION_ARCH.oci.tar and .docker.tar, the same image in two formats: a small Debian, the program
# that make packages has built, and a user for it. `make image` runs it. The base is built from Debian's packages,
# without an image registry. It needs mmdebstrap and buildah. It also works without root, with user namespaces
# (/etc/subuid). Optional environment variables:
#
#   SUITE              Debian suite; default: trixie
#   MIRROR             source of its packages; default: mmdebstrap's
#   SOFTHSM            yes adds SoftHSM, for trials; otherwise mount your HSM's library
#   OUT                folder for the images; default: dist
#   VERSION            default: the output of packaging/version.sh
#   SOURCE_DATE_EPOCH  date of all files in the image; default: the commit's
#
# The .oci.tar is reproducible from the same program and the same Debian packages. The .docker.tar contains a random id.
set -eu
umask 022
export LC_ALL=C TZ=UTC
cd "$(dirname "$0")/.."

VERSION=${VERSION:-$(sh packaging/version.sh)}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(sh packaging/version.sh --date)}
SUITE=${SUITE:-trixie}
ARCH=$(${GO:-go} env GOHOSTARCH)
export SOURCE_DATE_EPOCH
OUT=${OUT:-dist}

built=$PWD/dist/build/$ARCH
[ -x "$built/usr/bin/attestd" ] || { echo "image.sh: $built/usr/bin/attestd does not exist: run make packages first" >&2; exit 1; }

packages=ca-certificates,p11-kit-modules
if [ "${SOFTHSM:-}" = yes ]; then packages=$packages,softhsm2; fi

# A number, because Kubernetes' runAsNonRoot does not accept names.
user=10001

say() { echo "image: $*" >&2; }

# Lays out attestd's files for the image.
lay_out() { # lay_out FOLDER
	install -D -m 755 "$built/usr/bin/attestd" "$1/usr/bin/attestd"
	install -D -m 644 -t "$1/usr/share/doc/attestd" LICENSE "$built/doc/deb/third-party-notices.gz"
	install -D -m 644 -t "$1/usr/share/attestd/prometheus" packaging/prometheus/*
}

debian() { # debian FILES TARBALL
	mmdebstrap --quiet --variant=essential --architectures="$ARCH" --include="$packages" \
		--dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/doc/*' \
		--dpkgopt='path-include=/usr/share/doc/*/copyright' --dpkgopt='path-include=/usr/share/doc/attestd/*' \
		--customize-hook="copy-in $1/usr /" \
		--customize-hook="echo 'attestd:x:$user:' >>\"\$1/etc/group\"" \
		--customize-hook="echo 'attestd:x:$user:$user:attestd attestation appliance:/var/lib/attestd:/usr/sbin/nologin' >>\"\$1/etc/passwd\"" \
		--customize-hook="cd \"\$1\" && mkdir -p etc/attestd var/lib/attestd var/backups/attestd" \
		--customize-hook="cd \"\$1\" && chmod 700 etc/attestd var/lib/attestd var/backups/attestd" \
		--customize-hook="cd \"\$1\" && chown $user:$user etc/attestd var/lib/attestd var/backups/attestd" \
		--customize-hook="cd \"\$1\" && rm -rf var/log/* var/cache/* var/lib/apt/lists/* var/lib/dpkg/*-old etc/*- etc/machine-id etc/hostname etc/resolv.conf" \
		"$SUITE" "$2" ${MIRROR:+"$MIRROR"}
}

# shellcheck disable=SC2086 # $store is a list
# Only Docker's format has a health check; OCI's configuration has none. The admin socket is next to the data, because a
# container may have an unsuitable /run or a read-only root.
image() { # image FOLDER FORMAT FILE
	container=$(buildah $store from --format "$2" scratch)
	buildah $store add --quiet "$container" "$1/root.tar" / >/dev/null
	buildah $store config --user "$user:$user" --entrypoint '["/usr/bin/attestd"]' --cmd serve --workingdir /var/lib/attestd \
		--env ATTESTD_SERVER_LISTEN=0.0.0.0:8080 --env ATTESTD_SERVER_ALLOW_PLAIN_HTTP=true --env ATTESTD_ADMIN_SOCKET=/var/lib/attestd/admin.sock \
		--port 8080 --port 9464 --volume /etc/attestd --volume /var/lib/attestd --stop-signal SIGTERM \
		--label org.opencontainers.image.title=attestd --label org.opencontainers.image.version="$VERSION" \
		--label org.opencontainers.image.licenses=Apache-2.0 --label org.opencontainers.image.source=https://github.com/attestd/attestd \
		--label org.opencontainers.image.base.name="debian:$SUITE" "$container"
	[ "$2" = oci ] || buildah $store config --hostname attestd --healthcheck 'CMD /usr/bin/attestd health' --healthcheck-interval 30s --healthcheck-timeout 10s \
		--healthcheck-start-period 30s "$container"
	rm -f "${3#*:}"
	buildah $store commit --quiet --rm --disable-compression=false --omit-history --timestamp "$SOURCE_DATE_EPOCH" --format "$2" "$container" \
		"$3:localhost/attestd:$(printf %s "$VERSION" | tr '+~' '__')" >/dev/null
}

# A separate invocation, which runs as root of a user namespace if the user is not root.
if [ "${1:-}" = commit ]; then # commit FOLDER NAME
	store="--root $2/storage --runroot $2/run --storage-driver vfs"
	image "$2" oci "oci:$2/oci"
	tar -c --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner -C "$2/oci" . >"$3.oci.tar"
	image "$2" docker "docker-archive:$3.docker.tar"
	exit
fi

work=$(mktemp -d)
chmod 755 "$work" # mmdebstrap may work as another user
as_root=
[ "$(id -u)" = 0 ] || as_root='buildah unshare'
trap '$as_root rm -rf "$work"' EXIT

lay_out "$work/files"
say "a $SUITE of $packages by mmdebstrap"
debian "$work/files" "$work/root.tar"
say "the image, by buildah"
name=$OUT/attestd_${VERSION}_$ARCH
if [ "${SOFTHSM:-}" = yes ]; then name=$name-softhsm; fi
export VERSION SUITE
$as_root sh packaging/image.sh commit "$work" "$(realpath "$name")"
for file in "$name.oci.tar" "$name.docker.tar"; do printf '%9d  %s\n' "$(stat -c %s "$file")" "$file"; done

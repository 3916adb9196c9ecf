#!/bin/sh
# Builds the packages into dist/: one .deb, .rpm and software bill of materials for each architecture, and the checksums
# of all. `make packages` runs it. Optional environment variables:
#
#   ARCHES             architectures, by Go's names; default: this machine's, and arm64 with its cross compiler
#   VERSION            default: the output of packaging/version.sh
#   SOURCE_DATE_EPOCH  date of all files in the packages; default: the commit's
#   GPG_KEY            key that signs the .rpm files and SHA256SUMS; without it, they are not signed
#   GO                 the go command
#
# The build is reproducible: the same commit gives the same bytes on each machine with the same Go, C compiler and
# rpmbuild, regardless of its clock, its paths and its user.
set -eu
umask 022
export LC_ALL=C TZ=UTC CGO_ENABLED=1
cd "$(dirname "$0")/.."

NFPM=github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.0

GO=${GO:-go}
VERSION=${VERSION:-$(sh packaging/version.sh)}
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(sh packaging/version.sh --date)}
export VERSION SOURCE_DATE_EPOCH

# These settings replace the user's own, so that the build does not depend on them.
export GOFLAGS='-trimpath -buildvcs=false' GOAMD64=v1 GOARM64=v8.0
export CGO_CFLAGS='-O2 -fstack-protector-strong -D_FORTIFY_SOURCE=2' CGO_LDFLAGS='-Wl,-z,relro,-z,now'

host=$($GO env GOHOSTARCH)

cross() { # cross ARCH: prints the C compiler for it, if there is one
	case $1 in
	"$host") echo "${CC:-gcc}" ;;
	amd64) command -v x86_64-linux-gnu-gcc ;;
	arm64) command -v aarch64-linux-gnu-gcc ;;
	esac
}

compile() { # compile ARCH FILE
	cc=$(cross "$1") || cc=
	[ -n "$cc" ] || { echo "build.sh: no C compiler for $1: install gcc-aarch64-linux-gnu or the equivalent package" >&2; exit 1; }
	GOOS=linux GOARCH=$1 CC=$cc GOMODCACHE=$($GO env GOMODCACHE) \
		$GO build -toolexec "sh '$PWD/packaging/asm.sh'" -buildmode=pie -ldflags "-s -w -X main.release=$VERSION" -o "$2" ./appliance/cmd/attestd
}

lay() { # lay FILE... TARGET: installs with mode 644
	install -D -m 644 "$@"
}

# Makes the files that are the same for every architecture, with the program for this machine.
common() { # common FOLDER PROGRAM
	man=$(mktemp -d)
	"$2" man "$man"
	mkdir -p "$1/usr/share/man/man1" "$1/usr/share/man/man5"
	for page in "$man"/*; do
		gzip -9n <"$page" >"$1/usr/share/man/man${page##*.}/${page##*/}.gz"
	done
	rm -rf "$man"

	mkdir -p "$1/usr/share/bash-completion/completions" "$1/usr/share/zsh" "$1/usr/share/fish/vendor_completions.d"
	"$2" completion bash >"$1/usr/share/bash-completion/completions/attestd"
	"$2" completion zsh >"$1/usr/share/zsh/attestd"
	"$2" completion fish >"$1/usr/share/fish/vendor_completions.d/attestd.fish"

	mkdir -p "$1/usr/share/attestd"
	reference "$2" /usr/lib/softhsm/libsofthsm2.so >"$1/usr/share/attestd/attestd.yaml"
	reference "$2" /usr/lib64/pkcs11/libsofthsm2.so >"$1/usr/share/attestd/attestd.rpm.yaml"

	for unit in systemd/attestd*; do lay "$unit" "$1/usr/lib/systemd/system/${unit##*/}"; done
	lay packaging/sysusers.conf "$1/usr/lib/sysusers.d/attestd.conf"
	lay packaging/tmpfiles.conf "$1/usr/lib/tmpfiles.d/attestd.conf"

	lay -t "$1/usr/share/attestd/prometheus" packaging/prometheus/attestd.rules.yml packaging/prometheus/attestd.rules.test.yml
	lay -t "$1/usr/share/attestd/grafana" packaging/grafana/attestd.json
	lay -t "$1/usr/share/attestd" packaging/compose.yaml
	lay -t "$1/usr/share/attestd/helm/attestd" packaging/helm/attestd/*.yaml
	lay -t "$1/usr/share/attestd/helm/attestd/templates" packaging/helm/attestd/templates/*
	for example in packaging/examples/*; do lay "$example" "$1/doc/examples/${example##*/}"; done
	lay -t "$1/doc/deb" docs/*.md docs/performance.json docs/scale.json packaging/README.Debian packaging/copyright
	lay -t "$1/doc/rpm" docs/*.md docs/performance.json docs/scale.json
	lay -t "$1/doc/decisions" docs/decisions/*.md
	lay -t "$1/doc/contracts" docs/contracts/*
	lay packaging/README.Debian "$1/doc/rpm/README.first"
	lay -t "$1" packaging/lintian-overrides LICENSE
	$GO run ./packaging/release changelog -format debian -version "$VERSION" -date "$SOURCE_DATE_EPOCH" CHANGELOG.md | gzip -9n >"$1/doc/deb/changelog.gz"
	$GO run ./packaging/release changelog -format rpm -version "$VERSION" -date "$SOURCE_DATE_EPOCH" CHANGELOG.md >"$1/changelog.rpm"

	mkdir -p "$1/scripts" "$1/rpm"
	cp -R packaging/deb packaging/rpm "$1/scripts"
}

# Prints the reference file: every setting with its description. The packages have no file in /etc/attestd. Defaults are
# in the program; other values are in the file that `attestd setup` writes, which no upgrade touches.
reference() { # reference PROGRAM MODULE
	{
		cat <<-'END'
			# Every value that attestd can be configured with, and its default. This file is not read: copy what is to
			# differ, with the sections it is in and without the # at the line's beginning, to
			# /etc/attestd/attestd.yaml, which 'attestd setup' has written. 'attestd config check' finds mistakes,
			# 'attestd config show' prints what is in effect. After a change: systemctl reload attestd, or restart where
			# reload says so.

		END
		env -i "$1" --config /dev/null config show | sed -e "s,/usr/lib[a-z0-9/]*/libsofthsm2.so,$2,"
	} | sed -e 's/^/#/'
}

# Puts the files of the .rpm into the places that attestd.spec lists.
rpm_tree() { # rpm_tree FOLDER-OF-BUILD
	cp -R "$1/usr" "$1/rpm/"
	mkdir -p "$1/rpm/var/lib/attestd" "$1/rpm/var/backups/attestd"
	lay "$1/usr/share/attestd/attestd.rpm.yaml" "$1/rpm/usr/share/attestd/attestd.yaml"
	rm "$1/rpm/usr/share/attestd/attestd.rpm.yaml"
	lay "$1/rpm/usr/share/attestd/attestd.yaml" "$1/rpm/etc/attestd/attestd.yaml" # for %ghost; not in the package
	lay "$1/usr/share/zsh/attestd" "$1/rpm/usr/share/zsh/site-functions/_attestd"
	rm "$1/rpm/usr/share/zsh/attestd"
	lay -t "$1/rpm/usr/share/licenses/attestd" "$1/LICENSE"
	lay -t "$1/rpm/usr/share/doc/attestd" "$1"/doc/rpm/*
	lay -t "$1/rpm/usr/share/doc/attestd/examples" "$1"/doc/examples/*
	lay -t "$1/rpm/usr/share/doc/attestd/decisions" "$1"/doc/decisions/*
	lay -t "$1/rpm/usr/share/doc/attestd/contracts" "$1"/doc/contracts/*
}

make_deb() { # make_deb FOLDER-OF-BUILD FILE
	cp packaging/nfpm.yaml "$1"
	(cd "$1" && GOFLAGS='' CGO_CFLAGS='' CGO_LDFLAGS='' CGO_ENABLED=0 $GO run "$NFPM" package -p deb -t "$2" >nfpm.log 2>&1) ||
		{ cat "$1/nfpm.log" >&2; exit 1; }
}

# Uses rpmbuild, because nfpm supports neither Requires(pre) nor relative file names in the archive. HOME hides the
# user's macros from rpmbuild.
make_rpm() { # make_rpm FOLDER-OF-BUILD MACHINE FOLDER
	HOME=$1 rpmbuild -bb --quiet --target "$2-unknown-linux" --define "_topdir $1/rpmbuild" --define "_rpmdir $3" \
		--define "attestd_version $VERSION" --define "root $1/rpm" --define "scripts $1/scripts/rpm" \
		--define "changes $1/changelog.rpm" packaging/attestd.spec >"$1/rpm.log" 2>&1 || { cat "$1/rpm.log" >&2; exit 1; }
}

build() { # build ARCH
	root=$PWD/dist/build/$1
	rm -rf "$root"
	install -D -m 755 "dist/build/attestd.$1" "$root/usr/bin/attestd"
	cp -R dist/build/common/. "$root"
	$GO run ./packaging/release notices "$root/usr/bin/attestd" | gzip -9n >"$root/doc/deb/third-party-notices.gz"
	cp "$root/doc/deb/third-party-notices.gz" "$root/doc/rpm"
	rpm_tree "$root"
	find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +

	# The program needs at least the libc version of the newest libc symbol that it imports.
	GLIBC=$(readelf -W --version-info "$root/usr/bin/attestd" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -V | tail -n 1)
	ARCH=$1
	export ARCH GLIBC

	case $1 in amd64) machine=x86_64 ;; arm64) machine=aarch64 ;; *) machine=$1 ;; esac
	deb=dist/attestd_${VERSION}_$1.deb rpm=dist/attestd-$VERSION.$machine.rpm sbom=dist/attestd_${VERSION}_$1.cdx.json
	rm -f "$deb" "$rpm"
	make_deb "$root" "$PWD/$deb"
	make_rpm "$root" "$machine" "$PWD/dist"
	$GO run ./packaging/release sbom -version "$VERSION" -date "$SOURCE_DATE_EPOCH" "$root/usr/bin/attestd" >"$sbom"
	made="$made ${deb#dist/} ${rpm#dist/} ${sbom#dist/}"
}

arches=${ARCHES:-}
if [ -z "$arches" ]; then
	arches=$host
	for other in amd64 arm64; do
		if [ "$other" != "$host" ] && cross "$other" >/dev/null; then arches="$arches $other"; fi
	done
fi

rm -rf dist/build
mkdir -p dist/build
for arch in $arches; do compile "$arch" "dist/build/attestd.$arch"; done
[ -e "dist/build/attestd.$host" ] || compile "$host" "dist/build/attestd.$host"
common dist/build/common "dist/build/attestd.$host"
made=
for arch in $arches; do build "$arch"; done

cd dist
if [ -n "${GPG_KEY:-}" ]; then
	for file in $made; do
		case $file in *.rpm) rpmsign --define "__gpg $(command -v gpg)" --define "_gpg_name $GPG_KEY" --addsign "$file" >/dev/null ;; esac
	done
fi
# The provenance names the files as they are published, so it follows the signatures. A copy without git has no commit.
provenance=attestd_$VERSION.intoto.json
rm -f "$provenance"
if commit=$(git rev-parse --verify --quiet HEAD); then
	# shellcheck disable=SC2046,SC2086 # a list
	(cd .. && $GO run ./packaging/release provenance -version "$VERSION" -commit "$commit" -date "$SOURCE_DATE_EPOCH" \
		"dist/build/attestd.$host" $(printf 'dist/%s ' $made)) >"$provenance"
	made="$made $provenance"
fi
# shellcheck disable=SC2086 # a list
sha256sum $made >SHA256SUMS
rm -f SHA256SUMS.asc
[ -z "${GPG_KEY:-}" ] || gpg --batch --yes --local-user "$GPG_KEY" --armor --detach-sign --output SHA256SUMS.asc SHA256SUMS
for file in $made SHA256SUMS*; do printf '%9d  dist/%s\n' "$(stat -c %s "$file")" "$file"; done

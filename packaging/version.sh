#!/bin/sh
# Prints the version of this source in a form that dpkg, rpm and people sort in the same order. With --date, it prints
# the time of the commit, in seconds since 1970.
#
#   v1.2.0           1.2.0
#   v1.2.0-rc.1      1.2.0~rc.1               before 1.2.0
#   five later       1.2.0+5.gabcdef123456    after 1.2.0, before 1.2.1
#   no tag at all    0.0.0~git7.gabcdef123456 before every tagged version; 7 is the number of commits
#   not committed    …+dirty or ….dirty
#
# If no tag is visible, the newest release in CHANGELOG.md takes the place of the last tag:
#
#   shallow clone    1.2.0+0.20261121153000.gabcdef123456  after 1.2.0, before 1.2.0+5…; by the commit's date
#   git archive      the commit's own version if git could describe it; otherwise as in a shallow clone
#   neither          1.2.0+0.unknown
#   no release       0.0.0~git… with the known parts, or 0.0.0~devel
set -eu

# git archive fills these in (.gitattributes). In other copies they begin with a dollar.
# shellcheck disable=SC2016 # not for the shell
archived_as='$Format:%(describe:tags=true,match=v[0-9]*,abbrev=12)$'
# shellcheck disable=SC2016
archived_commit='$Format:%H$'
# shellcheck disable=SC2016
archived_date='$Format:%ct$'

in_git() { # false if this source was only unpacked inside another repository
	prefix=$(git rev-parse --show-prefix 2>/dev/null) && [ -z "$prefix" ] && git rev-parse --verify --quiet HEAD >/dev/null
}

in_archive() { case $archived_commit in \$*) false ;; esac; }

as_package() { # as_package TAG: 1.2.0~rc.1 for v1.2.0-rc.1
	printf %s "${1#v}" | sed 's/-/~/; s/-/./g'
}

described() { # described DESCRIPTION: DESCRIPTION is from git describe, v1.2.0 or v1.2.0-5-gabcdef123456
	commit=${1##*-g} rest=${1%-g*}
	count=${rest##*-}
	case $count in
	'' | *[!0-9]*) as_package "$1" ;;
	0) as_package "${rest%-*}" ;;
	*) as_package "${rest%-*}" && printf %s "+$count.g$commit" ;;
	esac
}

released() { # prints the newest release of CHANGELOG.md and its date, if any
	if [ -e CHANGELOG.md ]; then sed -n 's/^## \[\([0-9][^]]*\)\] - \([0-9-]*\).*/\1 \2/p' CHANGELOG.md | head -n 1; fi
}

after_release() { # after_release SUFFIX
	base=$(released)
	as_package "${base%% *}" && echo "+0.$1"
}

at() { # at SECONDS COMMIT
	echo "$(date -u -d "@$1" +%Y%m%d%H%M%S).g$(printf %.12s "$2")"
}

of_git() {
	if description=$(git describe --tags --match 'v[0-9]*' --long --abbrev=12 2>/dev/null); then
		version=$(described "$description")
	elif [ -n "$(released)" ]; then
		version=$(after_release "$(at "$(git log -1 --format=%ct)" "$(git rev-parse HEAD)")")
	else
		version=0.0.0~git$(git rev-list --count HEAD).g$(git rev-parse --short=12 HEAD)
	fi
	if ! git diff --quiet HEAD -- 2>/dev/null; then
		case $version in
		*+*) version=$version.dirty ;;
		*) version=$version+dirty ;;
		esac
	fi
	echo "$version"
}

of_archive() {
	case $archived_as in
	v*) described "$archived_as" && echo ;;
	*) # no tag, or a git without %(describe)
		if [ -n "$(released)" ]; then
			after_release "$(at "$archived_date" "$archived_commit")"
		else
			echo "0.0.0~git$(at "$archived_date" "$archived_commit")"
		fi
		;;
	esac
}

seconds() {
	release=$(released)
	if in_git; then
		git log -1 --format=%ct
	elif in_archive; then
		echo "$archived_date"
	else
		date -u -d "${release##* }" +%s
	fi
}

if [ "${1:-}" = --date ]; then
	seconds
elif in_git; then
	of_git
elif in_archive; then
	of_archive
elif [ -n "$(released)" ]; then
	after_release unknown
else
	echo 0.0.0~devel
fi

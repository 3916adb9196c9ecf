#!/bin/sh
# Prints the version of this commit in a form that dpkg, rpm and people order alike:
#
#   v1.2.0           1.2.0
#   v1.2.0-rc.1      1.2.0~rc.1               before 1.2.0
#   five later       1.2.0+5.gabcdef123456    after 1.2.0, before 1.2.1
#   no tag at all    0.0.0~git7.gabcdef123456 before everything that has one; 7 is the number of commits
#   not committed    …+dirty or ….dirty
set -eu

if ! git rev-parse --verify --quiet HEAD >/dev/null 2>&1; then
	echo 0.0.0~devel
	exit
fi
if described=$(git describe --tags --match 'v[0-9]*' --long --abbrev=12 2>/dev/null); then
	commit=${described##*-}
	rest=${described%-*}
	version=$(printf %s "${rest%-*}" | sed 's/^v//; s/-/~/; s/-/./g')
	[ "${rest##*-}" = 0 ] || version=$version+${rest##*-}.$commit
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

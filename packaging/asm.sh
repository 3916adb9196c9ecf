#!/bin/sh
# For `go build -toolexec`: has Go's assembler leave the module cache's path out of what it makes.
#
# With -trimpath, go tells the assembler how the folder of a package is to be called, but not the folders of files that
# the package includes from elsewhere in its module, as gnark-crypto's do. Those would get in with their whole path, and
# with it the name of the person who builds. -asmflags could say so, too, if go did not record it in the program.
set -eu

case $1 in
*/asm) ;;
*) exec "$@" ;;
esac
# What go asks for to tell two tools apart: what this one makes is not to be confused with what the bare one made.
if [ "${2:-}" = -V=full ]; then
	echo "$("$@") without the module cache's path"
	exit
fi
last=
for arg; do
	shift
	[ "$last" != -trimpath ] || arg="$arg;$GOMODCACHE=>"
	set -- "$@" "$arg"
	last=$arg
done
exec "$@"

#!/bin/sh
# For `go build -toolexec`: makes Go's assembler omit the path of the module cache from its output.
#
# With -trimpath, go rewrites only the folder of the package for the assembler. A package such as gnark-crypto's
# includes files from other folders of its module. Their full path would get into the program, with the name of the user
# who builds it. -asmflags could rewrite that path as well, but go records -asmflags in the program.
set -eu

case $1 in
*/asm) ;;
*) exec "$@" ;;
esac
# go identifies tools by this output. A distinct one keeps the cached output of this tool apart from the plain
# assembler's.
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

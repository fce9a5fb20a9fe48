#!/bin/sh
# Put Debian's user-mode-linux, a second kernel that runs as a plain process, where tests/vm/uml.py looks for it.
# Usage: vm-uml.sh   Prints the folder. Needs no root; does nothing, offline or not, once it is there.
# DINNET_VM_CACHE names the folder of all second kernels (~/.cache/dinnet/vm).
set -eu
cache=${DINNET_VM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/dinnet/vm}
home=$cache/uml

fail() {
    printf 'vm-uml: %s\n' "$*" >&2
    exit 1
}

if [ -x "$home/usr/bin/linux.uml" ] && [ -d "$home/usr/lib/uml/modules" ]; then
    printf '%s\n' "$home"
    exit 0
fi
[ "$(uname -m)" = x86_64 ] || fail "user-mode-linux is for x86_64; this is $(uname -m)"
for program in apt-get dpkg; do
    command -v "$program" >/dev/null 2>&1 || fail "$program is missing: only Debian and its kin have the package"
done
mkdir -p "$cache"
part=$(mktemp -d "$cache/.uml.XXXXXX")
trap 'rm -rf "$part"' EXIT
trap 'exit 1' INT TERM
(cd "$part" && apt-get -q download user-mode-linux >download.log 2>&1) ||
    fail "apt-get could not download user-mode-linux: $(grep -m1 '^E:' "$part/download.log" || echo no reason given)"
dpkg -x "$part"/user-mode-linux_*.deb "$part/root" || fail "the downloaded package cannot be unpacked"
[ -x "$part/root/usr/bin/linux.uml" ] || fail "the downloaded package holds no usr/bin/linux.uml"
rm -rf "$home"
mv "$part/root" "$home"
printf '%s\n' "$home"

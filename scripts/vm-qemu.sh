#!/bin/sh
# Put Debian 12's own kernel (Linux 6.1, amd64) and a static busybox where tests/vm/qemu.py looks for them, and install
# QEMU where it is missing and this is root.
# Usage: vm-qemu.sh   Prints the folder. Does nothing, offline or not, once everything is there.
# DINNET_VM_CACHE names the folder of all second kernels (~/.cache/dinnet/vm).
set -eu
cache=${DINNET_VM_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/dinnet/vm}
home=$cache/linux

say() { printf '==> %s\n' "$*" >&2; }
fail() {
    printf 'vm-qemu: %s\n' "$*" >&2
    exit 1
}
has_qemu() { command -v qemu-system-x86_64 >/dev/null 2>&1; }
is_whole() { [ -x "$home/bin/busybox" ] && [ -d "$home/boot" ] && [ -d "$home/lib/modules" ]; }

if has_qemu && is_whole; then
    printf '%s\n' "$home"
    exit 0
fi
for program in apt-get apt-cache dpkg; do
    command -v "$program" >/dev/null 2>&1 || fail "$program is missing: only Debian and its kin have these packages"
done
if ! has_qemu; then
    [ "$(id -u)" = 0 ] || fail "qemu-system-x86_64 is missing: apt-get install qemu-system-x86"
    say "installing Debian package: qemu-system-x86"
    DEBIAN_FRONTEND=noninteractive apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends \
        qemu-system-x86 >/dev/null 2>&1 || fail "apt-get could not install qemu-system-x86"
fi
if ! is_whole; then
    # The newest of the 6.1 series that the sources of apt have.
    kernel=$(apt-cache search --names-only '^linux-image-6\.1\.0-[0-9]+-amd64$' | cut -d' ' -f1 | sort -V | tail -n 1)
    [ -n "$kernel" ] || fail "apt knows no linux-image-6.1.0-*-amd64: it is in Debian 12 (after apt-get update)"
    say "downloading $kernel and busybox-static to $home"
    mkdir -p "$cache"
    part=$(mktemp -d "$cache/.linux.XXXXXX")
    trap 'rm -rf "$part"' EXIT
    trap 'exit 1' INT TERM
    for package in "$kernel" busybox-static; do
        (cd "$part" && apt-get -q download "$package" >download.log 2>&1) ||
            fail "apt-get could not download $package: $(grep -m1 '^E:' "$part/download.log" || echo no reason given)"
        dpkg -x "$part/$package"_*.deb "$part/root" || fail "$package as downloaded cannot be unpacked"
    done
    # Of a kernel of 400 MB, what a machine for tests of networks can need.
    mkdir -p "$part/kept/bin"
    mv "$part/root/boot" "$part/kept/"
    mv "$(find "$part/root" -path '*bin/busybox' -type f)" "$part/kept/bin/busybox"
    modules=$part/root/lib/modules
    rm -rf "$modules"/*/kernel/sound
    find "$modules"/*/kernel/drivers -mindepth 1 -maxdepth 1 ! -name net ! -name virtio ! -name block ! -name char \
        -exec rm -rf {} +
    find "$modules"/*/kernel/drivers/net -mindepth 1 -maxdepth 1 -type d ! -name macsec ! -name vxlan \
        ! -name bonding -exec rm -rf {} +
    mkdir -p "$part/kept/lib"
    mv "$modules" "$part/kept/lib/"
    rm -rf "$home"
    mv "$part/kept" "$home"
fi
printf '%s\n' "$home"

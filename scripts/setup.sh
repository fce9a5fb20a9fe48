#!/bin/sh
# Install what is missing, say what it is, and do nothing when nothing is missing.
# Usage: setup.sh WHAT...   WHAT: demo, test
# VENV names the environment (.venv), PYTHON the interpreter that makes it (python3).
set -eu
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
python=${PYTHON:-python3}
made=$venv/.made           # only in an environment that this script has made: by whom, then where and of what
installed=$venv/.installed # what was installed last, once that is whole
PATH=$PATH:/usr/sbin:/sbin # where Debian keeps programs that a plain user's PATH does not lead to

say() { printf '==> %s\n' "$*"; }
fail() {
    printf 'setup: %s\n' "$*" >&2
    exit 1
}
can_make() { "$python" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
# An environment works at one place, with one version of Python.
place() { printf '%s\n' "$(pwd -P)" "$("$venv/bin/python" -V 2>&1)"; }
content() { cat "$1" 2>/dev/null || true; }

if [ -e "$made" ] && [ "$(content "$made")" != "$(place)" ]; then
    maker=$(content "$made")
    case $maker in
    process\ *) ! kill -0 "${maker#process }" 2>/dev/null || fail "$maker is installing into $venv; wait for its end" ;;
    esac
    say "$venv is not whole, has been moved, or has lost its Python: making it anew"
    rm -rf "$venv"
fi

# program:package pairs for Debian; a missing one is named and the parts that need it are skipped.
wanted="ip:iproute2 ethtool:ethtool tcpdump:tcpdump ping:iputils-ping"
for what in "$@"; do
    [ "$what" = test ] && wanted="$wanted tshark:tshark"
done
missing() {
    for pair in $wanted; do
        command -v "${pair%%:*}" >/dev/null 2>&1 || printf ' %s' "${pair##*:}"
    done
    [ -x "$venv/bin/python" ] || can_make || printf ' python3-venv'
}
packages=$(missing)
if [ -n "$packages" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    say "installing Debian packages:$packages"
    export DEBIAN_FRONTEND=noninteractive
    # One by one, and on after a failure: offline, or where one is not to be had, the others still count.
    apt-get -q -o DPkg::Lock::Timeout=300 update >/dev/null || true
    for package in $packages; do
        apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends "$package" >/dev/null || true
    done
    packages=$(missing)
    [ -z "$packages" ] || say "could not be installed:$packages (what needs them is skipped)"
elif [ -n "$packages" ]; then
    say "missing, and not installed without root and apt-get:$packages (what needs them is skipped)"
fi

if [ ! -x "$venv/bin/python" ]; then
    can_make || fail "$python is no Python 3.11 or newer with venv (Debian: python3-venv); name another one by PYTHON="
    # Whatever is there already is somebody else's: it gets no mark, and is never removed.
    [ -e "$venv" ] || { mkdir -p "$venv" && echo "process $$" >"$made"; }
    "$python" -m venv "$venv"
fi
extras=dev
for what in "$@"; do
    [ "$what" = test ] && extras=dev,inference
done
# What an environment has of them is not taken away: after `test`, `demo` finds everything it needs.
case $(content "$installed") in *inference*) extras=dev,inference ;; esac
want=$(cat pyproject.toml constraints.txt | cksum)" $extras"
if [ "$(content "$installed")" != "$want" ]; then
    say "installing dinnet and its Python packages into $venv"
    echo unfinished >"$installed" # from here on, whatever ends this
    "$venv/bin/python" -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[$extras]" ||
        fail "pip could not install into $venv (it says why above); mend that, or remove $venv, and run this again"
    [ ! -e "$made" ] || place >"$made"
    printf '%s\n' "$want" >"$installed"
fi
# Second kernels, for a few tests that are skipped without them.
for what in "$@"; do
    [ "$what" = test ] || continue
    for script in scripts/vm-*.sh; do
        [ ! -x "$script" ] || "$script" >/dev/null || say "no second kernel by $script (what needs it is skipped)"
    done
done

# p4runtime-shell pins a protobuf that dinnet does not live with: an environment of its own, for the tests that use it.
shell=${P4RT_VENV:-$venv-p4rt}
packages="p4runtime-shell==0.0.6 protobuf==3.20.3"
for what in "$@"; do
    [ "$what" = test ] && [ -z "${P4RUNTIME_SH:-}" ] || continue
    [ "$(content "$shell/.installed")" != "$packages" ] || continue
    if [ -e "$shell" ] && [ ! -e "$shell/.installed" ]; then
        say "$shell is not this script's: tests with p4runtime-shell are skipped"
        continue
    fi
    say "installing p4runtime-shell into $shell"
    mkdir -p "$shell" && echo unfinished >"$shell/.installed"
    # shellcheck disable=SC2086 # several packages
    if { [ -x "$shell/bin/python" ] || "$python" -m venv "$shell"; } >/dev/null 2>&1 &&
        "$shell/bin/python" -m pip install -q --disable-pip-version-check $packages >"$shell/.log" 2>&1; then
        printf '%s\n' "$packages" >"$shell/.installed"
    else
        say "p4runtime-shell could not be installed ($shell/.log says why): the tests with it are skipped"
    fi
done

#!/bin/sh
# Install what is missing, say what it is, and do nothing when nothing is missing.
# Usage: setup.sh WHAT...   WHAT: demo, test
set -eu
cd "$(dirname "$0")/.."
venv=${VENV:-.venv}
python=${PYTHON:-python3}

say() { printf '==> %s\n' "$*"; }

# program:package pairs for Debian; a missing one is named and the parts that need it are skipped.
wanted="ip:iproute2 ethtool:ethtool tcpdump:tcpdump ping:iputils-ping"
for what in "$@"; do
    [ "$what" = test ] && wanted="$wanted tshark:tshark"
done
packages=""
for pair in $wanted; do
    PATH="$PATH:/usr/sbin:/sbin" command -v "${pair%%:*}" >/dev/null 2>&1 || packages="$packages ${pair##*:}"
done
"$python" -c 'import ensurepip, venv' 2>/dev/null || packages="$packages python3-venv"
if [ -n "$packages" ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        say "installing Debian packages:$packages"
        export DEBIAN_FRONTEND=noninteractive
        apt-get -q -o DPkg::Lock::Timeout=300 update >/dev/null
        # shellcheck disable=SC2086
        apt-get -q -y -o DPkg::Lock::Timeout=300 install --no-install-recommends $packages >/dev/null
    else
        say "missing, and not installed without root and apt-get:$packages (what needs them is skipped)"
    fi
fi

stamp="$venv/.installed"
want=$(cat pyproject.toml constraints.txt | cksum)
if [ ! -x "$venv/bin/python" ] || [ "$(cat "$stamp" 2>/dev/null)" != "$want" ]; then
    say "installing dinnet and its Python packages into $venv"
    [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
    printf '%s' "$want" >"$stamp"
fi

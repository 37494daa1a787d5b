#!/usr/bin/env bash
# Run a command with the newest Python that sawlog is tested with: tools/newest_python.sh COMMAND...
#
# COMMAND finds the interpreter in $NEWEST_PYTHON. It is one of this machine, if one of them works.
# Otherwise a small Debian system that has it is unpacked into the user's cache, once, and COMMAND
# runs there, in a chroot in which the folders of this machine are where they always are.
#
#   SAWLOG_FORCE_CHROOT=1      unpack and use the Debian system even where a Python works
#   SAWLOG_DEBIAN_MIRROR=URL   where to get it; otherwise from the mirror that apt is set up with
set -euo pipefail

VERSIONS=(3.13 3.14 3.12) # in this order
SUITE=trixie              # the Debian release whose python3 is the first of these
CACHE=${XDG_CACHE_HOME:-$HOME/.cache}/sawlog
SYSTEM=$CACHE/$SUITE

say() { echo "newest_python: $*" >&2; }
fail() {
    say "$@"
    exit 1
}

# -- a Python of this machine ----------------------------------------------------------------------

# Paths that may be Pythons of a version: those on the PATH, then those that pyenv has installed.
candidates() {
    type -ap "python$1" || true
    if command -v pyenv >/dev/null; then
        ls -d "$(pyenv root)"/versions/"$1".*[0-9]/bin/"python$1" 2>/dev/null || true
    fi
}

# It must really run (a shim of pyenv may only say "command not found") and make environments.
works() {
    "$1" -c "import ensurepip, ssl, sys, venv; sys.exit('%d.%d' % sys.version_info[:2] != '$2')" \
        >/dev/null 2>&1
}

find_python() {
    local version path
    for version in "${VERSIONS[@]}"; do
        while read -r path; do
            if works "$path" "$version"; then
                echo "$path"
                return
            fi
        done < <(candidates "$version")
    done
    return 1
}

# -- a Debian system that has one ------------------------------------------------------------------

need_root() {
    ((EUID == 0)) || fail "no Python of ${VERSIONS[*]} works here, and only root can unpack one." \
        "Install python${VERSIONS[0]} with its venv module, or run this as root."
    command -v apt-get >/dev/null || fail "no Python of ${VERSIONS[*]} works here, and there is" \
        "no apt-get to get one with. Install python${VERSIONS[0]} with its venv module."
}

# The first of apt's mirrors that has the suite.
mirror() {
    local site
    # shellcheck disable=SC2016  # apt-get expands it
    for site in ${SAWLOG_DEBIAN_MIRROR:-$(apt-get indextargets --format '$(SITE)' | sort -u)}; do
        if /usr/lib/apt/apt-helper -qq download-file "$site/dists/$SUITE/InRelease" \
            "$CACHE/InRelease" >/dev/null 2>&1; then
            echo "$site"
            return
        fi
    done
    fail "none of apt's mirrors has Debian $SUITE. Set SAWLOG_DEBIAN_MIRROR to the URL of one."
}

# Unpacked aside and renamed when complete, in a mount namespace of its own: whatever debootstrap
# mounts ends with it. Only one process unpacks; what an interrupted one left behind is removed.
unpack_system() (
    [[ ! -e $SYSTEM ]] || return 0
    mkdir -p "$CACHE"
    exec 9>"$CACHE/lock"
    flock 9
    [[ ! -e $SYSTEM ]] || return 0
    rm -rf --one-file-system "$CACHE/$SUITE".part-*

    if ! command -v debootstrap >/dev/null; then
        say "installing debootstrap"
        apt-get update -qq >&2
        apt-get install -qq -y debootstrap debian-archive-keyring >&2
    fi
    site=$(mirror)
    part=$(mktemp -d "$CACHE/$SUITE.part-XXXXXX")
    say "unpacking Debian $SUITE into $SYSTEM (once; takes a minute or two)"
    if [[ ! ${http_proxy:-} ]]; then # debootstrap does not know apt's settings
        eval "$(apt-config shell http_proxy Acquire::http::Proxy)"
        [[ ! ${http_proxy:-} ]] || export http_proxy
    fi
    unshare --mount --propagation private debootstrap --force-check-gpg --variant=minbase \
        --include=python3,python3-venv,ca-certificates "$SUITE" "$part" "$site" \
        >"$CACHE/debootstrap.log" 2>&1 ||
        fail "debootstrap failed: $(tail -n 3 "$CACHE/debootstrap.log")"
    rm -rf "$part"/var/cache/apt/archives/*.deb "$CACHE/InRelease"
    mv "$part" "$SYSTEM"
)

# Runs within a mount namespace of its own: nothing stays mounted, and no other process, such as
# an `rm -rf` of the cache, ever sees what is mounted below the system.
enter_system() {
    local path
    for path in /*; do # all folders of this machine but those that make the system what it is
        case $path in
            /bin | /boot | /etc | /lib* | /run | /sbin | /usr | /var | /lost+found) ;;
            *) bind "$path" ;;
        esac
    done
    for path in "$PWD" "$HOME" "$CACHE"; do # should they be below one of those
        case $path in /etc/* | /run/* | /usr/* | /var/*) bind "$path" ;; esac
    done
    # Names of hosts, certificates and pip's settings are this machine's.
    for path in /etc/hosts /etc/resolv.conf /etc/pip.conf /etc/xdg/pip \
        /etc/ssl/certs/ca-certificates.crt "${PIP_CERT:-}" "${SSL_CERT_FILE:-}" \
        "${REQUESTS_CA_BUNDLE:-}" "${PIP_CONFIG_FILE:-}"; do
        case $path in /etc/* | /usr/*) bind "$path" ;; esac
    done
    export NEWEST_PYTHON=/usr/bin/python${VERSIONS[0]} PATH=/usr/bin:/usr/sbin
    # shellcheck disable=SC2016  # the inner shell expands it
    exec chroot "$SYSTEM" /bin/bash -c 'cd "$0" && exec "$@"' "$PWD" "$@"
}

# Make a file or folder of this machine visible at the same path of the system.
bind() {
    local target=$SYSTEM$1
    if [[ -L $1 && -d $1 ]]; then
        [[ -e $target || -L $target ]] || cp -P "$1" "$target"
    elif [[ -d $1 ]]; then
        mkdir -p "$target"
        mount --rbind "$1" "$target"
    elif [[ -f $1 ]]; then
        [[ -e $target ]] || { mkdir -p "${target%/*}" && touch "$target"; }
        mount --bind "$(realpath "$1")" "$target"
    fi
}

# -- the command -----------------------------------------------------------------------------------

(($#)) || fail "which command? $0 COMMAND..."

if [[ ${1:-} == --inside ]]; then # this script, called by itself
    enter_system "${@:2}"
elif [[ ! ${SAWLOG_FORCE_CHROOT:-} ]] && NEWEST_PYTHON=$(find_python); then
    export NEWEST_PYTHON
    exec "$@"
else
    need_root
    unpack_system
    exec unshare --mount --propagation private "${BASH_SOURCE[0]}" --inside "$@"
fi

#!/bin/sh
# aarch64.sh FOLDER: what building for aarch64 takes beside Debian's cross compiler: its packages of the libraries, unpacked in
# FOLDER (the system's own packages stay as they are), and FOLDER/cross.ini for meson, which runs programs under qemu-user.
set -eu
folder=$(mkdir -p "$1" && cd "$1" && pwd)
root=$folder/root lib=usr/lib/aarch64-linux-gnu

if [ ! -e "$root/done" ] || [ ! -e "$root/$lib/pkgconfig/libutf8proc.pc" ]; then
    mkdir -p "$folder/lists/partial" "$folder/cache/archives/partial" "$root"
    : >"$folder/status"
    for words in update \
        "install -y --no-install-recommends --download-only libopenblas-openmp-dev libjansson-dev libpcre2-dev libutf8proc-dev \
        libcmocka-dev"; do
        # shellcheck disable=SC2086
        apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures::=arm64 -o Dir::State::status="$folder/status" \
            -o Dir::State::lists="$folder/lists" -o Dir::Cache="$folder/cache" $words
    done
    # The cross compiler has headers and a linker script of its own for the C library; those of the package name the target's paths.
    for package in "$folder"/cache/archives/*.deb; do
        case ${package##*/} in libc6-dev* | libc-dev* | linux-libc-dev* | libcrypt-dev*) continue ;; esac
        dpkg -x "$package" "$root"
    done
    # What the package's alternatives would set.
    ln -sf openblas-openmp/libopenblas.so.0 "$root/$lib/libopenblas.so.0"
    touch "$root/done"
fi
compiler="'aarch64-linux-gnu-gcc'"
if command -v ccache >/dev/null; then compiler="'ccache', $compiler"; fi
cat >"$folder/cross.ini" <<TEXT
[binaries]
c = [$compiler]
ar = 'aarch64-linux-gnu-ar'
strip = 'aarch64-linux-gnu-strip'
pkgconfig = 'pkg-config'
exe_wrapper = ['qemu-aarch64', '-L', '$root']
[properties]
pkg_config_libdir = ['$root/$lib/pkgconfig', '$root/$lib/openblas-openmp/pkgconfig']
sys_root = '$root'
[built-in options]
c_args = ['-isystem', '$root/usr/include', '-isystem', '$root/usr/include/aarch64-linux-gnu']
c_link_args = ['-L$root/$lib', '-L$root/$lib/openblas-openmp', '-Wl,-rpath-link,$root/$lib']
[host_machine]
system = 'linux'
cpu_family = 'aarch64'
cpu = 'aarch64'
endian = 'little'
TEXT

# Shared by the scripts of this folder, after ../lib.sh.
# shellcheck shell=bash

# fresh_debian FOLDER PACKAGES: a new Debian like this one, from where this one gets its packages,
# with PACKAGES (a,b). The folder is a tmpfs, as /tmp may forbid devices.
fresh_debian() {
  local mirror VERSION_CODENAME
  # shellcheck disable=SC1091
  . /etc/os-release
  mirror=$(apt-get indextargets --format '$(SITE) $(RELEASE)' "Created-By: Packages" |
    awk -v suite="$VERSION_CODENAME" '$2 == suite { print $1; exit }')
  mkdir "$1"
  mount -t tmpfs -o mode=755,size=1500M tmpfs "$1"
  debootstrap --variant=minbase --include="$2" "$VERSION_CODENAME" "$1" "$mirror" \
    >debootstrap.log 2>&1 || { tail -n 20 debootstrap.log; fail "debootstrap"; }
}

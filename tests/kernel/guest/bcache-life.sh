# Inside the kernel: start the set of cache.img with the backing devices one.img and two.img, and
# print to the file `found` "NAME SHA256 STATE" of each volume: that of a backing device has its
# name; the volume that lies in the cache alone is `flash`.
# shellcheck shell=bash
. "$tests/kernel/lib.sh"
mp bcache
cd "$1"
register=/sys/fs/bcache/register
volumes() { # N: so many volumes are there
  [ "$(find /sys/block -maxdepth 1 -name 'bcache*' | wc -l)" = "$1" ]
}
ends() { [ -z "$(find /sys/fs/bcache -mindepth 1 -maxdepth 1 -type d)" ]; }

fast=$(loop cache.img)
for name in one two; do
  device=$(loop "$name.img")
  echo "${device##*/} $name"
  echo "$device" >$register
done >names
echo "$fast" >$register
await "three volumes appear" volumes 3
for volume in /sys/block/bcache*; do
  own=$volume/bcache
  backing=$(cat "$own/backing_dev_name" 2>/dev/null || true)
  name=$(awk -v device="$backing" '$1 == device { print $2 }' names)
  state=$(cat "$own/state" 2>/dev/null || echo -)
  echo "${name:-flash} $(content "/dev/${volume##*/}") ${state// /-}"
done | sort >found
for volume in /sys/block/bcache*; do echo 1 >"$volume/bcache/stop" || true; done
for set in /sys/fs/bcache/*-*; do echo 1 >"$set/stop"; done
await "the set ends" ends
if dmesg | grep -i 'bcache.*\(error\|corrupt\|\<bad\>\|invalid\)'; then exit 1; fi

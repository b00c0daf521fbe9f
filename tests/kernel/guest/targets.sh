# Inside the kernel: see tests/kernel/targets.sh. Arguments: the folder with the images `a`, `b`
# and `c`, and the file `lines`, each line "NAME TABLE LINE". Leaves `tables` and `statuses`, as dmsetup
# prints them with the devices' names put back, and `sums`: what each device reads like.
# shellcheck shell=bash
. "$tests/kernel/lib.sh"
cd "$1"
mp dm-zero
mp dm-delay
mp dm-flakey
a=$(loop a) b=$(loop b) c=$(loop c)
number() { mountpoint -x "$1"; } # DEVICE: as the kernel prints it
names() {
  sed "s, $(number "$a") , a ,g; s, $(number "$b") , b ,g; s, $(number "$c") , c ,g; s/ *$//"
}
while read -r name line; do
  sed "s, a , $a ,g; s, b , $b ,g; s, c , $c ,g" <<<"$line " | dmsetup create "$name" --noudevsync
  echo "$name: $(dmsetup table "$name")" | names >>tables
  echo "$name: $(dmsetup status "$name")" | names >>statuses
  if [ "$name" = stripes ]; then fill "/dev/mapper/$name" kk 0 400 4096; fi
  echo "$name $(content "/dev/mapper/$name" 2>/dev/null || true)" >>sums
  dm_remove "$name"
done <lines
sync

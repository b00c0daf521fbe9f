# Inside the kernel: open the pools that our tools made. For each line "POOL ID SECTORS SHA256" of the
# file $1, with POOL.meta and POOL.data beside it, print "POOL ID SHA256_FOUND" to the file `found`.
# After the last volume of a pool go on with it.
# shellcheck shell=bash
. "$tests/kernel/lib.sh"
mp dm-thin-pool
cd "$(dirname "$1")"

go_on() { # ID SECTORS: of a volume of the pool that is open
  dmsetup message pool 0 "create_snap 1000 $1"
  dmsetup message pool 0 "create_thin 1001"
  dm_create thin "0 1024 thin /dev/mapper/pool 1001"
  fill /dev/mapper/thin kk 0 8 4096
  flush /dev/mapper/thin
  dm_remove thin
  dm_create thin "0 $2 thin /dev/mapper/pool $1"
  fill /dev/mapper/thin ll 0 8 4096
  flush /dev/mapper/thin
  dm_remove thin
  dmsetup message pool 0 "delete 1000"
}

for pool in $(cut -d ' ' -f 1 "$1" | sort -u); do
  meta=$(loop "$pool.meta") data=$(loop "$pool.data")
  dm_create pool "0 $(sectors "$pool.data") thin-pool $meta $data 128 0 1 skip_block_zeroing"
  while read -r _ id size _; do
    dm_create thin "0 $size thin /dev/mapper/pool $id"
    echo "$pool $id $(content /dev/mapper/thin)" >&3
    dm_remove thin
    last=$id last_size=$size
  done < <(grep "^$pool " "$1")
  go_on "$last" "$last_size"
  dm_remove pool
  losetup -d "$meta" "$data"
done 3>found

# Inside the kernel: open the pools that our tools made. For each line "POOL ID SECTORS SHA256" of the
# file $1, with POOL.meta and POOL.data beside it, print "POOL ID SHA256_FOUND" to the file `found`.
# After the last volume of a pool look at its metadata beside the kernel, and go on with it.
# shellcheck shell=bash
. "$tests/kernel/lib.sh"
mp dm-thin-pool
cd "$(dirname "$1")"

# refused WORD...: the tool does not read what the kernel holds.
refused() {
  local code=0
  "$CAIRN" "$@" >refused.log 2>&1 || code=$?
  [ "$code" = 4 ] || { echo "cairn $*: exit $code"; cat refused.log; exit 1; }
}
# together META: several readers at one time are not in each other's way.
together() {
  local reader readers=()
  for reader in 1 2 3 4 5 6 7 8; do
    "$CAIRN" check "$1" >"reader.$reader" 2>&1 &
    readers+=($!)
  done
  for reader in "${readers[@]}"; do
    wait "$reader" || { cat reader.*; exit 1; }
  done
}
# beside META: tools and the metadata of the pool that is open. Only its metadata snapshot may be
# read, as it is on the device: the page cache has what was there before.
beside() {
  refused check "$1"
  refused dump "$1"
  refused rmap "$1"
  refused repair "$1" --output none
  dd if="$1" of=/dev/null bs=64K status=none
  dmsetup message pool 0 "create_thin 2000"
  dmsetup message pool 0 reserve_metadata_snap
  "$CAIRN" dump --metadata-snapshot "$1" >held.xml
  grep -q 'dev_id="2000"' held.xml || { echo "the held dump of $1"; cat held.xml; exit 1; }
  dmsetup message pool 0 release_metadata_snap
  dmsetup message pool 0 "delete 2000"
}

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
  together "$meta"
  dm_create pool "0 $(sectors "$pool.data") thin-pool $meta $data 128 0 1 skip_block_zeroing"
  while read -r _ id size _; do
    dm_create thin "0 $size thin /dev/mapper/pool $id"
    echo "$pool $id $(content /dev/mapper/thin)" >&3
    dm_remove thin
    last=$id last_size=$size
  done < <(grep "^$pool " "$1")
  beside "$meta"
  go_on "$last" "$last_size"
  dm_remove pool
  losetup -d "$meta" "$data"
done 3>found

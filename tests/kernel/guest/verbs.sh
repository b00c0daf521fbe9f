# For tests/kernel/verbs.sh: the steps with dmsetup.
# shellcheck shell=bash
. "$tests/kernel/lib.sh"
mp dm-thin-pool
mp brd rd_nr=1 rd_size=4096
# A path of @NAME is the node that devtmpfs made.
placed() {
  local word
  for word in $1; do
    case $word in
      @*) word=/dev/$(dmsetup info -c --noheadings -o blkdevname "${word#@}") ;;
    esac
    printf '%s ' "$word"
  done
}
new() {
  dmsetup create "$1" --noudevsync --table "$(placed "$2")" || {
    dmsetup remove "$1" --noudevsync 2>/dev/null
    return 1
  }
}
load() { dmsetup load "$1" --table "$(placed "$2")"; }
suspend() { dmsetup suspend "$1"; }
resume() { dmsetup resume --noudevsync "$1"; }
remove() { dmsetup remove --noudevsync "$1"; }
message() { local name=$1; shift; dmsetup message "$name" 0 "$*"; }
status() { dmsetup status "$1"; }
events() { dmsetup info -c --noheadings -o events "$1"; }
wait_for() {
  local said=0
  timeout 1 dmsetup wait --noudevsync "$1" "$2" || said=$?
  echo "wait $2: $said"
}
fast=$(loop "$1/fast") slow=$(loop "$1/slow") plain=$(loop "$1/plain") noise=$(loop "$1/noise")
no_discards=/dev/ram0
{ . "$tests/kernel/guest/steps"; } >"$1/kernel" 2>"$1/kernel.log"

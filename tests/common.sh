# Shared by the scripts on this machine (lib.sh) and inside the kernel (kernel/lib.sh).
# shellcheck shell=bash
# await WHAT COMMAND...: wait until COMMAND succeeds; after a minute, fail
await() {
  local what=$1 deadline=$((SECONDS + 60))
  shift
  until "$@"; do
    if [ "$SECONDS" -ge "$deadline" ]; then echo "FAILED: after a minute, not yet: $what"; exit 1; fi
    sleep 0.05
  done
}

# pattern SEED BYTES [FIRST]: bytes that say which run (CAIRN_SEED, up to 9000), which seed (two
# letters) and which place (in units of 16 bytes, counted from byte FIRST) they belong to, so that a
# misplaced block cannot pass.
pattern() {
  local first=$((CAIRN_SEED * 1000000000 + ${3:-0} / 16))
  { seq -f "$1%013.0f" "$first" 9999999999999 2>/dev/null || true; } | head -c "$2"
}
sectors() { echo $(($(stat -c %s "$1") / 512)); } # FILE

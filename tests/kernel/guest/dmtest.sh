# Inside the kernel: see scripts/dmtest. Arguments: the folder of the suite, and those of its `run`.
# shellcheck shell=bash
. "$tests/common.sh"
mp nbd max_part=0 nbds_max=16
work=$1
shift
export PATH=$work/bin:$PATH PYTHONPATH=$work/src:${PYTHONPATH:-}
export CAIRN_CONTROL=/run/control DMTEST_RESULT_SET=cairn
answers() { dmsetup ls >/dev/null 2>&1; }
"$CAIRN" serve --state /run/state --control /run/control --listen unix:/run/nbd.sock >/run/serve.log 2>&1 &
await "the server serves" answers
status=0
python3 -m dmtest run "$@" || status=$?
if [ "$status" -ne 0 ]; then
  python3 -m dmtest log --state FAIL "$@" | tail -n "${CAIRN_DMTEST_LOG:-100}"
  echo "the server's last words:"
  tail -n 20 /run/serve.log
fi
exit "$status"

"""Loads: fio over its nbd engine, with verification that is known to be able to fail (see
test_canary.py, which runs this very command line against disks that lie)."""

import json

from harness import Failure, check, read, tail

def fio_args(nbd, mib=64, seconds=None, depth=16, seed=1, extra=()):
    """fio: mixed reads and writes of 512 B to 1 MiB, each block written once, and every block
    written is read back and compared with its CRC: some while writing goes on (verify_backlog), all
    at the end. With `seconds`, the rate is held down so that the writing lasts about that long.

    Without a time limit on purpose: fio must end because its work is done, and a disk that hangs
    must be seen as one."""
    args = [
        "fio", "--name=verify", "--ioengine=nbd", f"--uri={nbd}", "--thread", "--output-format=json",
        "--rw=randrw", "--rwmixread=40",
        # Sizes mixed as applications mix them: most of them small, and each class well represented.
        "--bssplit=512/20:4k/30:12k/10:64k/20:256k/10:1m/10", "--blockalign=512",
        f"--size={mib}m", f"--iodepth={depth}", f"--randseed={seed}", "--verify=crc32c",
        "--verify_fatal=1", "--verify_backlog=64", "--verify_dump=0", "--fsync=64",
    ]
    if seconds:
        # fio's rates are per direction: 6 in 10 bytes are written; the others, and those again to
        # verify them, are read.
        args += [f"--rate={int(mib * 1048576 / seconds)},{int(mib * 1048576 * 0.6 / seconds)}"]
    return args + list(extra)


class Fio:
    """A fio that runs on the initiator's side."""

    def __init__(self, lab, nbd, **options):
        self.process = lab.start("initiator", *fio_args(nbd, **options))

    def still_running(self, when):
        check(self.process.running, f"fio ended before {when}, so the test shows nothing\n{tail(self.process.stderr)}")

    def finish(self, timeout=90):
        """Waits for its end; fails unless it verified everything without an error. Returns the job."""
        self.process.wait(timeout, expect=None)
        return judge(self.process)


def judge(process):
    """The job's figures, or a failure if fio or its verification found anything wrong."""
    job = job_of(process)
    code = process.popen.returncode
    if code != 0 or job["error"] != 0:
        raise Failure(f"fio: exit {code}, error {job['error']}\n{tail(process.stderr)}{tail(process.stdout, 5)}")
    check(job["write"]["total_ios"] > 0 and job["read"]["total_ios"] > job["write"]["total_ios"] / 2,
          f"fio did not both write and verify: {job['read']['total_ios']} reads, {job['write']['total_ios']} writes")
    return job


def job_of(process):
    text = read(process.stdout_path)
    start = text.find("{")
    try:
        return json.loads(text[start:])["jobs"][0]
    except (ValueError, KeyError, IndexError):
        raise Failure(f"fio printed no result, exit {process.popen.returncode}\n"
                      f"{tail(process.stderr)}{tail(text)}") from None


def verified(lab, nbd, timeout=90, **options):
    """Runs the load to its end."""
    return Fio(lab, nbd, **options).finish(timeout)

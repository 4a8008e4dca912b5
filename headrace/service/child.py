"""Child processes that do not outlive their parent."""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent(parent_pid: int, signal_number: int = signal.SIGKILL) -> None:
    """Ask the kernel to send `signal_number` to this process when its parent ends, however that ends.

    Call it in the child (`preexec_fn`, or the first line of a forked process). `parent_pid` is the parent's own pid,
    taken before the fork: if the parent is gone already, the signal is sent at once. Linux only; elsewhere a no-op.
    """
    if _libc is None:
        return
    _libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal_number)

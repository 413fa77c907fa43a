"""Jobs of workers in tests of sweeps, in a module of its own: fresh processes import it, and little else."""

import os
import signal
from multiprocessing.connection import Connection

from hardware.errors import InputError

LARGE = 1 << 20
"""Bytes of an answer that no pipe takes at once: its worker waits in the middle of it until somebody reads."""


def large(_):
    return bytes(LARGE)


def double(number):
    return 2 * number


def shielded(_):
    return signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def where(_):
    return os.getpid()


def refused(number):
    raise InputError(f"{number}", allowed="another number", where="job")


def broken(number):
    raise ZeroDivisionError(f"job {number}")


def ending(number):
    """Answer the first job; end in the middle of writing the answer to the next."""

    def half(connection, part):
        os.write(connection.fileno(), part[: len(part) // 2])
        os._exit(9)

    if number:
        Connection._send = half
    return number

"""What holds for every test."""

import signal


def pytest_configure() -> None:
    """Take interrupts as a terminal gives them: a shell starts what it runs in the background deaf to them."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)

"""Shared by the tests of the package."""
import memtape
from lib import check


def refused(what, said, call, kind=memtape.MemtapeError):
    """Checks that call() raises, and that the message contains `said`."""
    try:
        call()
    except kind as error:
        check(said in str(error), f"{what}: {error}")
    else:
        check(False, f"{what} is not refused")

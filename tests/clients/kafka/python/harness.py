"""What all these programs share: checks that print their result, addresses, names.

A program's checks are functions marked with `@check`. `main` runs them and prints `ok NAME`,
`not ok NAME: WHY` or `skip NAME: WHY` for each; the exit status is 1 when one failed. Words on the
command line choose checks by a part of their name.

Addresses come from the environment: KAFKA, KAFKA_TLS, KAFKA_TLS_CA (see tests/clients/README.md).
"""

import asyncio
import inspect
import itertools
import os
import signal
import sys
import time
import traceback

BROKER = os.environ.get("KAFKA", "127.0.0.1:9092")
TLS = os.environ.get("KAFKA_TLS", "")
TLS_CA = os.environ.get("KAFKA_TLS_CA", "")
# Only what hangs takes so long; a machine that is slow and busy does not decide. No check measures
# how quick anything is.
PATIENCE_S = 600
CHECK_S_MAX = 1800

_checks = []
_numbers = itertools.count()


class Skip(Exception):
    """The check has no meaning here; the message says why."""


class TookTooLong(BaseException):
    """The check's time is over. No `except` of a check or a library is meant to take it: a
    TimeoutError would be one of the errors that they expect."""


def check(function):
    _checks.append(function)
    return function


def name(kind="topic"):
    """A name that nobody else has."""
    return f"{kind}-{os.getpid()}-{next(_numbers)}"


def wait_for(condition, what):
    """Looks until `condition()` is true, and returns what it gave."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        result = condition()
        if result:
            return result
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.02)


def same(found, expected, what):
    assert found == expected, f"{what}: expected {shorten(expected)}, found {shorten(found)}"


def shorten(value):
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:300]}... ({len(text)} characters)"


def _timed_out(signum, frame):
    raise TookTooLong(f"took longer than {CHECK_S_MAX} s")


def main():
    signal.signal(signal.SIGALRM, _timed_out)
    failed = False
    for function in _checks:
        if sys.argv[1:] and not any(word in function.__name__ for word in sys.argv[1:]):
            continue
        title = function.__name__.replace("_", " ")
        start = time.monotonic()
        signal.alarm(CHECK_S_MAX)
        try:
            if inspect.iscoroutinefunction(function):
                asyncio.run(function())
            else:
                function()
        except Skip as why:
            print(f"skip {title}: {why}", flush=True)
        except (Exception, TookTooLong) as error:
            failed = True
            traceback.print_exc()
            why = " ".join(f"{type(error).__name__}: {error}".split())
            print(f"not ok {title}: {why}", flush=True)
        else:
            print(f"ok {title} ({time.monotonic() - start:.1f} s)", flush=True)
        finally:
            signal.alarm(0)
    # A client's threads may hang after a failure; everything that counts has been printed.
    sys.stdout.flush()
    os._exit(int(failed))

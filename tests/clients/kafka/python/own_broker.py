"""A broker that the program itself starts and ends; `command` runs it."""

import signal
import socket
import subprocess
from pathlib import Path

import harness
from harness import PATIENCE_S, wait_for


def listens():
    host, port = harness.BROKER.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), 1).close()
        return True
    except OSError:
        return False


class Broker:
    def __init__(self, command):
        self.command = command
        self.process = None

    def start(self):
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

        def serves():
            assert self.process.poll() is None, "the broker has ended"
            return listens()

        wait_for(serves, "the broker serves")

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.kill()

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
        # One that was started by way of another program may end a little later than that.
        wait_for(lambda: not listens(), "the broker has gone")

    def written(self):
        """Returns once the kernel has what was acknowledged before.

        The broker writes it within 10 ms of its own time, and nothing tells of it; but who has
        something to do is running, or ready to, or waits for the disk: all threads sleep through
        twenty looks only when nothing is left.
        """
        looks = []

        def rests():
            tasks = Path(f"/proc/{self.process.pid}/task").iterdir()
            states = {(task / "stat").read_text().rpartition(") ")[2][0] for task in tasks}
            looks.append(states == {"S"})
            return looks[-20:] == [True] * 20

        wait_for(rests, "the broker rests")

    def stop(self):
        """An orderly end."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=PATIENCE_S)
        # Java says that it was ended by a signal.
        assert status in (0, 143), f"the broker ended with {status}"

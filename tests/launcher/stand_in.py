"""A stand-in for an engine: a real process that answers /health after a while, and misbehaves as it is told to.

Its command line may hold any of vLLM's flags; `--port` is used. Behaviour comes from the environment:
STAND_IN_DELAY seconds until it listens, STAND_IN_DIE exit after so many seconds, STAND_IN_STUBBORN=1 ignore SIGTERM,
STAND_IN_FAMILY=1 start a child in a session of its own that ignores SIGTERM, and a grandchild that loses its parent,
STAND_IN_TIDY a file that a child, which ignores SIGTERM, removes once this process has ended (as Python's own resource
tracker does with shared memory), STAND_IN_HOST the address it listens on.
"""

import argparse
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

SLEEPER = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
FORKER = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {SLEEPER!r}])"
TRACKER = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(sys.argv[1], "w").close()
sys.stdin.read()
time.sleep(0.3)
os.unlink(sys.argv[1])
"""


class Health(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/health" else 404)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_known_args()[0].port
    if os.environ.get("STAND_IN_STUBBORN"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.environ.get("STAND_IN_FAMILY"):
        subprocess.Popen([sys.executable, "-c", SLEEPER], start_new_session=True)
        subprocess.run([sys.executable, "-c", FORKER], check=True)
    if tidy := os.environ.get("STAND_IN_TIDY"):
        subprocess.Popen([sys.executable, "-c", TRACKER, tidy], stdin=subprocess.PIPE)
    if die := os.environ.get("STAND_IN_DIE"):
        threading.Timer(float(die), give_up).start()
    say("loading the weights")
    time.sleep(float(os.environ.get("STAND_IN_DELAY", "0")))
    say("serving")
    ThreadingHTTPServer((os.environ.get("STAND_IN_HOST", "127.0.0.1"), port), Health).serve_forever()


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def give_up() -> None:
    say("Traceback (most recent call last):\n  ...\nValueError: the weights do not fit")
    say("RuntimeError: Engine core initialization failed. See root cause above.")
    os._exit(3)


if __name__ == "__main__":
    main()

"""The doctor against a live server it did not write, in three staged conditions.

Starts llama-cpp-python's server (its own virtual environment: `pip install
'llama-cpp-python[server]'`) on the sample model and asks it with `doctor --url`:
stable    the prompt's prefix stays as it is: the server's prefix cache works
cold      a front end puts a time stamp before every prompt: the cache never hits
taken     other processes take the CPU

    python benchmarks/doctor_live.py [--server-python PATH] --model FILE.gguf [--out FILE.jsonl]

Without --server-python our own server is asked.

Prints each page and, last, one JSON line a condition with the codes found and expected. The
machine should be quiet: its load before each condition is printed. Where others take it anyway,
THREADS is right in every condition; then the codes without that fact are judged: the expected one
must be there, and PREFIX_MISS in `cold` only.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from twostroke_doctor import Parsed
from twostroke_doctor.diagnose import diagnose
from twostroke_doctor.probe import ProbeLimits, make_plan, run_plan
from twostroke_doctor.probe.machine import cpu_busy_share
from twostroke_doctor.report import text_page

EXPECTED = {"stable": "DECODE", "cold": "PREFIX_MISS", "taken": "THREADS"}
START_S = 120.0


def free_port() -> int:
    """Return a port that is free now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def server_command(python: str | None, model: str, threads: int, port: int) -> list[str]:
    """Return how to start llama-cpp-python's server, or our own where no Python is given."""
    if python is None:
        flags = ["--port", str(port), "--threads", str(threads)]
        return [sys.executable, "-m", "twostroke", "serve", model, *flags]
    command = [python, "-m", "llama_cpp.server", "--model", model, "--port", str(port)]
    flags = ["--n_ctx", "8192", "--n_threads", str(threads), "--n_threads_batch", str(threads)]
    return [*command, *flags]


def start_server(
    python: str | None, model: str, threads: int
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a server and wait until it answers."""
    port = free_port()
    command = server_command(python, model, threads, port)
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and server.poll() is None:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
            connection.request("GET", "/v1/models")
            if connection.getresponse().status == 200:
                return server, port
        except OSError:
            time.sleep(0.3)
    server.kill()
    raise SystemExit("the server did not start: is llama-cpp-python[server] installed there?")


class StampingFrontEnd(BaseHTTPRequestHandler):
    """Passes requests on with a time stamp before the prompt, as some front ends do."""

    target_port = 0

    def log_message(self, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Pass a look on."""
        self._pass_on("GET", None)

    def do_POST(self) -> None:
        """Pass a generation on, its prompt stamped."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        stamp = f"[{time.time_ns()}] "
        for message in body.get("messages", []):
            message["content"] = stamp + message["content"]
        if "prompt" in body:
            body["prompt"] = stamp + body["prompt"]
        self._pass_on("POST", json.dumps(body))

    def _pass_on(self, method: str, body: str | None) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self.target_port, timeout=600)
        connection.request(method, self.path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        self.send_response(response.status)
        self.send_header("Connection", "close")
        self.end_headers()
        while line := response.readline():
            self.wfile.write(line)
            self.wfile.flush()
        connection.close()
        self.close_connection = True


def burn() -> None:
    """Take one core."""
    while True:
        sum(range(100_000))


def examine(condition: str, port: int, prompt_tokens: int) -> dict[str, object]:
    """Ask, print the page, and return the codes found."""
    limits = ProbeLimits(requests=12, seconds=240, tokens=40_000)
    plan = make_plan(f"http://127.0.0.1:{port}", limits, prompt_tokens=prompt_tokens)
    said: list[str] = []
    parsed = Parsed()
    parsed.add_all(run_plan(plan, say=said.append))
    diagnosis = diagnose(parsed)
    print(f"=== {condition} ===", *said, "", text_page(diagnosis, parsed), sep="\n", flush=True)
    first = diagnosis.findings[0]
    busy = parsed.fact("cpu_busy_share")
    quiet = Parsed(records=parsed.records, windows=parsed.windows)
    without = [finding.code for finding in diagnose(quiet).findings]
    right = first.code == EXPECTED[condition]
    if condition != "taken" and first.code == "THREADS":  # others do take this machine
        misses = "PREFIX_MISS" in without
        right = EXPECTED[condition] in without and misses == (condition == "cold")
    return {
        "condition": condition,
        "expected": EXPECTED[condition],
        "first": first.code,
        "share": first.share,
        "seconds": first.seconds,
        "codes": [finding.code for finding in diagnosis.findings],
        "cpu_busy_before": busy.value if busy else None,
        "codes_without_cpu_fact": without,
        "right": right,
    }


def run(condition: str, port: int, prompt_tokens: int) -> dict[str, object]:
    """Stage one condition around the server."""
    if condition == "cold":
        StampingFrontEnd.target_port = port
        front = ThreadingHTTPServer(("127.0.0.1", 0), StampingFrontEnd)
        threading.Thread(target=front.serve_forever, daemon=True).start()
        try:
            return examine(condition, front.server_address[1], prompt_tokens)
        finally:
            front.shutdown()
    if condition == "taken":
        cores = len(os.sched_getaffinity(0))
        burners = [multiprocessing.Process(target=burn, daemon=True) for _ in range(cores)]
        for burner in burners:
            burner.start()
        try:
            time.sleep(1)
            return examine(condition, port, prompt_tokens)
        finally:
            for burner in burners:
                burner.kill()
                burner.join()
    return examine(condition, port, prompt_tokens)


def wait_for_quiet(limit_s: float, busy: float) -> None:
    """Wait until others leave the machine alone, or the limit."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline and (cpu_busy_share(1.0) or 0.0) > busy:
        time.sleep(2)


def main() -> int:
    """Run all conditions on fresh servers."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--server-python", help="left out: our own server is asked")
    parser.add_argument("--model", required=True)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--prompt-tokens", type=int, default=2000)
    parser.add_argument("--wait-quiet", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("--only", choices=sorted(EXPECTED))
    parser.add_argument("--out")
    args = parser.parse_args()
    results = []
    for condition in EXPECTED if args.only is None else (args.only,):
        server, port = start_server(args.server_python, args.model, args.threads)
        try:
            wait_for_quiet(args.wait_quiet, 0.2)
            results.append(run(condition, port, args.prompt_tokens))
        finally:
            server.terminate()
            server.wait()
    lines = [json.dumps(result) for result in results]
    print(*lines, sep="\n")
    if args.out:
        with open(args.out, "a", encoding="utf-8") as out:
            out.writelines(line + "\n" for line in lines)
    return 0 if all(result["right"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())

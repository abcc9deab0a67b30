"""The worker processes: each engine's Python, worker script and form of the model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PEERS = Path(os.environ.get("TWOSTROKE_PEERS", HERE.parents[1] / ".venvs" / "peers"))


@dataclass(frozen=True)
class EngineSpec:
    """How to start one engine. environment None: the Python that runs compare.py."""

    worker: str
    environment: str | None
    form: str  # gguf, or the name of the folder into which setup_peers.sh converted the file

    def model_path(self, gguf: Path) -> Path:
        """Return the model in the form this engine reads."""
        return gguf if self.form == "gguf" else PEERS / "models" / gguf.stem / self.form


ENGINES = {
    "twostroke": EngineSpec("worker_twostroke.py", None, "gguf"),
    "llamacpp": EngineSpec("worker_llamacpp.py", "llama", "gguf"),
    "openvino-int8": EngineSpec("worker_openvino.py", "openvino", "ov-int8"),
    "openvino-int4": EngineSpec("worker_openvino.py", "openvino", "ov-int4"),
    "transformers": EngineSpec("worker_transformers.py", "openvino", "hf"),
}


class WorkerError(Exception):
    """A worker could not be started or refused a command."""


class Worker:
    """One running engine."""

    def __init__(
        self,
        name: str,
        gguf: Path,
        threads: int,
        python: str | None = None,
        *,
        script: Path | None = None,
    ) -> None:
        """Start it; script: another worker than the engine's own.

        Raises:
            WorkerError: the model or the program is missing, or it cannot load the model.
        """
        spec = ENGINES[name]
        self.name = name
        model = spec.model_path(gguf)
        if not model.exists():
            raise WorkerError(f"{name}: {model} is missing; run benchmarks/peers/setup_peers.sh")
        default = PEERS / spec.environment / "bin" / "python" if spec.environment else None
        program = python or str(default or sys.executable)
        environ = os.environ | {"OMP_NUM_THREADS": str(threads)}
        try:
            self.process = subprocess.Popen(
                [program, str(script or HERE / spec.worker)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environ,
            )
        except OSError as error:
            raise WorkerError(f"{name}: cannot start {program}: {error.strerror}") from None
        loaded = self.ask({"cmd": "load", "model": str(model), "threads": threads})
        self.load_s: float = loaded["seconds"]
        self.given: dict[str, Any] = loaded["given"]

    def ask(self, command: dict[str, Any]) -> dict[str, Any]:
        """Send a command and return its reply.

        Raises:
            WorkerError: the worker has ended, or its reply is an error.
        """
        assert self.process.stdin is not None and self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise WorkerError(f"{self.name}: the worker has ended, see its message") from None
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            raise WorkerError(f"{self.name}: the worker ended with code {code}")
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise WorkerError(f"{self.name}: {reply['error']}")
        return reply

    def close(self) -> None:
        """Tell the worker to quit, and kill it after 10 seconds."""
        if self.process.poll() is None:
            try:
                self.process.communicate(json.dumps({"cmd": "quit"}) + "\n", timeout=10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

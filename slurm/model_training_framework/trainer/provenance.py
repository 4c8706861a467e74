"""Where a measurement was made: device, versions and commit."""

from __future__ import annotations

import platform
import re
import subprocess
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

from model_training_framework.trainer.checkpoint import versions

GIT_TIMEOUT_S = 20


def device_name(device: Any) -> str:
    """Return the name of a GPU, or of the processor as the kernel has it."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8", errors="replace") if info.is_file() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.processor() or platform.machine()


def library_versions(device: Any) -> dict[str, str]:
    """Return the versions of the libraries that ran."""
    found = versions()
    if device.type == "cuda":
        found["cuda"] = str(torch.version.cuda or torch.version.hip)
        found["cudnn"] = str(torch.backends.cudnn.version())
    return found


def commit(folder: Path) -> str:
    """Return the commit that a folder is checked out at, with -dirty where it was changed; « unknown » without one."""
    git = ["git", "-C", str(folder)]
    options: dict[str, Any] = {"capture_output": True, "text": True, "timeout": GIT_TIMEOUT_S, "check": True}
    try:
        head = subprocess.run([*git, "rev-parse", "HEAD"], **options)
        changed = subprocess.run([*git, "status", "--porcelain", "--untracked-files=no"], **options)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return str(head.stdout).strip() + ("-dirty" if changed.stdout.strip() else "")


def config_hash(text: str) -> str:
    """Return the SHA-256 of a configuration's text."""
    return sha256(text.encode()).hexdigest()

"""The trainer's tests need torch and Lightning Fabric: pip install 'estimate-train-time[launch]'."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") and find_spec("lightning_fabric") else ["test_*.py"]

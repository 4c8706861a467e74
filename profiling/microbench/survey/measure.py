"""Measure this machine's GPU from this folder alone: no network, no installation, Python with torch is enough.

python3 gpu-kit/measure.py --minutes 9 --out OUT

Writes below OUT only, and into the system's folder for temporary files. It runs under the Python that is there: what
that Python lacks (pydantic, PyYAML, pytest, nvidia-ml-py) is taken from wheels/. Only the standard library is used.
"""

import os
import platform
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

KIT = Path(__file__).resolve().parent
# What is taken together where its first module is missing: these depend on each other's versions.
FAMILIES = {
    "pydantic": ("pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection"),
    "yaml": ("pyyaml",),
    "pytest": ("pytest", "pluggy", "iniconfig", "packaging", "pygments"),
    "pynvml": ("nvidia_ml_py",),
}
OPTIONAL = ("pytest", "pynvml")


def fits(wheel: str) -> bool:
    """Return whether a wheel's file name says that it runs on this Python and processor."""
    *_, python, abi, where = wheel.removesuffix(".whl").split("-")
    own = f"cp{sys.version_info[0]}{sys.version_info[1]}"
    right_python = own in python.split(".") or "py3" in python or (abi == "abi3" and python.startswith("cp3"))
    return right_python and (where == "any" or where.endswith(platform.machine()))


def unpack(site: Path) -> list[str]:
    """Unpack the modules that this Python lacks into a folder; return those still missing."""
    wheels = sorted(path for path in (KIT / "wheels").glob("*.whl") if fits(path.name))
    missing = []
    for module, names in FAMILIES.items():
        if find_spec(module) is not None:
            continue
        for name in names:
            matching = [path for path in wheels if path.name.lower().startswith(f"{name}-")]
            if not matching and module not in OPTIONAL:
                missing.append(name)
            for path in matching:
                with zipfile.ZipFile(path) as archive:
                    archive.extractall(site)
    return missing


def start(*words: str) -> int:
    """Run a command of the measuring code; return what it returns."""
    if find_spec("torch") is None:
        sys.stderr.write(f"error: {sys.executable} has no torch; start this with the Python that has it\n")
        return 2
    with tempfile.TemporaryDirectory(prefix="gpu-kit-") as site:
        missing = unpack(Path(site))
        if missing:
            version = f"{sys.version_info[0]}.{sys.version_info[1]}"
            sys.stderr.write(
                f"error: no wheel of {', '.join(missing)} for Python {version} on {platform.machine()} in this kit; "
                f"make it again with --python {version} --machine {platform.machine()}\n"
            )
            return 2
        code = KIT / "code"
        paths = [site, *map(str, (code, code / "profiling", code / "training")), os.environ.get("PYTHONPATH", "")]
        # Without a safe path the current folder comes first: in a checkout, half of the code would be the checkout's.
        environment = dict(
            os.environ,
            PYTHONPATH=os.pathsep.join(filter(None, paths)),
            PYTHONSAFEPATH="1",
            PYTHONDONTWRITEBYTECODE="1",
            TRITON_CACHE_DIR=os.environ.get("TRITON_CACHE_DIR", str(Path(site) / "triton")),
        )
        return subprocess.run([sys.executable, "-m", "microbench", *words], env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(start("survey", "--earlier", str(KIT / "earlier"), *sys.argv[1:]))

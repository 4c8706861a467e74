"""Read a model of the Hugging Face Hub by its id: ``hf:meta-llama/Llama-3.1-8B`` fetches its config.json, nothing else.

``HF_ENDPOINT`` names another hub, ``HF_TOKEN`` lets into gated models; both are those of huggingface_hub. Nothing that
comes from the hub is executed or kept.

Source of the address: huggingface/huggingface_hub, src/huggingface_hub/constants.py (HUGGINGFACE_CO_URL_TEMPLATE).
"""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from typing import Any

from predictor.core.base.errors import ConfigError
from predictor.core.schema.input_kind import HUB
from predictor.core.schema.read import Read
from predictor.formats.hugging_face import reader as hugging_face

ENDPOINT = "https://huggingface.co"
MODEL_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?(@[\w-][\w./-]*)?")
TIMEOUT_S = 20.0
LARGEST_BYTES = 10_000_000
REFUSALS = {
    401: "it is gated, private, or there is no such model; set HF_TOKEN to the token of an account that may read it",
    403: "it is gated; ask for access on its page, and set HF_TOKEN to the token of that account",
    404: "there is no such model, or it has no config.json",
}


def read_model(name: str) -> Read:
    """Read the shape of a model of the hub.

    Args:
        name: ``hf:`` with the id, ``@`` with a revision where not the main one is meant, ``#`` with the key of a
            configuration inside it.

    Raises:
        ConfigError: no such id can be, the hub cannot be reached or refuses it, or the model is not modelled.
    """
    model_id, _, part = name.partition("#")
    where = f"config.json of {model_id.removeprefix(HUB)}"
    content = hugging_face.part_of(_fetched(model_id), part, where)
    return hugging_face.translate(content, f"{where}{part and '#'}{part}")


def _address(name: str) -> str:
    model_id = name.removeprefix(HUB)
    if not MODEL_ID.fullmatch(model_id) or ".." in model_id:
        raise ConfigError(f"{name} is no model id; expected such as hf:meta-llama/Llama-3.1-8B")
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or ENDPOINT
    if not endpoint.startswith(("https://", "http://")):
        raise ConfigError(f"HF_ENDPOINT is {endpoint}; expected the address of a hub, such as {ENDPOINT}")
    repository, _, revision = model_id.partition("@")
    return f"{endpoint}/{repository}/resolve/{revision or 'main'}/config.json"


def _fetched(name: str) -> dict[str, Any]:
    """Return the config.json of a model of the hub."""
    address = _address(name)
    request = urllib.request.Request(address)
    token = os.environ.get("HF_TOKEN")
    if token and address.startswith("https://"):
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            content = answer.read(LARGEST_BYTES + 1)
    except urllib.error.HTTPError as error:
        reason = REFUSALS.get(error.code, f"the hub answers {error.code}")
        raise ConfigError(f"{name} cannot be read from {address}: {reason}") from None
    except (OSError, ValueError) as error:
        reason = str(getattr(error, "reason", error)).partition("\n")[0]
        raise ConfigError(
            f"{name} cannot be fetched: {address} is not reachable ({reason}); save its config.json and name that file"
        ) from None
    return _object(name, address, content)


def _object(name: str, address: str, content: bytes) -> dict[str, Any]:
    try:
        found = json.loads(content) if len(content) <= LARGEST_BYTES else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(f"{name} cannot be read: what {address} answers is no config.json")
    return found

"""Serve a trained model: optimise it once, then answer prompts, and measure how fast."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from llm_trainer.exceptions import GenerationError
from llm_trainer.models import TransformerLM
from llm_trainer.tokenizer import BPETokenizer
from llm_trainer.utils.generation import GenerationConfig, TextGenerator

LARGEST = 127  # of int8, the same on both sides of 0
CUDA_ROWS = 32  # cuBLAS multiplies int8 matrices of more than 16 rows only,
CUDA_MULTIPLE = 8  # and of sides that are multiples of 8


class Int8Linear(nn.Module):
    """A linear layer with int8 weights, whose inputs become int8 as they come; for inference only.

    A row of the weight, and a token of the input, has its largest magnitude as 127 (symmetric, per channel and per
    token). Source: Jacob et al. 2018, arXiv:1712.05877, section 2.3, with zero points of 0.
    """

    def __init__(self, linear: nn.Linear) -> None:
        """Quantise a layer's weight; the layer itself stays as it is."""
        super().__init__()
        weight = linear.weight.detach().float()
        scale = weight.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny) / LARGEST
        self.register_buffer("weight", (weight / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale)
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach().clone())

    def forward(self, hidden: Tensor) -> Tensor:
        """Return (…, out_features) of (…, in_features), of the same dtype."""
        rows = hidden.flatten(0, -2)
        number = rows.shape[0]
        scale = rows.abs().amax(dim=1, keepdim=True).float().clamp_min(1e-30) / LARGEST
        whole = (rows / scale).round().to(torch.int8)
        if rows.is_cuda and number < CUDA_ROWS:
            whole = functional.pad(whole, (0, 0, 0, CUDA_ROWS - number))
        product = torch._int_mm(whole, self.weight.t())[:number]
        result = product.float() * scale * self.scale
        if self.bias is not None:
            result = result + self.bias
        return cast("Tensor", result.to(hidden.dtype).unflatten(0, hidden.shape[:-1]))


def quantized(model: TransformerLM) -> TransformerLM:
    """Return a copy whose linear layers are int8; embeddings and norms stay as they are.

    Raises:
        GenerationError: a layer's sides are no multiples of 8, on CUDA.
    """
    result = copy.deepcopy(model)
    linears = [(name, module) for name, module in result.named_modules() if isinstance(module, nn.Linear)]
    for name, linear in linears:
        sides = (linear.in_features, linear.out_features)
        if linear.weight.is_cuda and any(side % CUDA_MULTIPLE for side in sides):
            raise GenerationError(
                f"{name} is {sides[0]} × {sides[1]}; int8 on CUDA needs multiples of {CUDA_MULTIPLE}. "
                "Set quantize to False"
            )
        result.set_submodule(name, Int8Linear(linear))
    return result


class InferenceEngine:
    """Continue prompts with a model that may be compiled and quantised.

    Keyword arguments of its methods are fields of ``GenerationConfig``.
    """

    def __init__(self, model: TransformerLM, tokenizer: BPETokenizer, device: torch.device | str | None = None) -> None:
        """Move the model to a device; keys and values are cached from the start.

        Args:
            model: a language model; ``optimize`` leaves it as it is.
            tokenizer: with which it was trained.
            device: None: where the model is.

        Raises:
            GenerationError: the tokenizer has more tokens than the model.
            TokenizerNotTrainedException: the tokenizer has no vocabulary yet.
        """
        self._model = model
        self._generator = TextGenerator(model, tokenizer, device)
        self._use_cache = True

    def optimize(
        self,
        enable_kv_cache: bool = True,
        compile_model: bool = True,
        quantize: bool = False,
        backend: str = "inductor",
    ) -> None:
        """Choose how the model runs; what an earlier call chose is undone.

        Args:
            enable_kv_cache: keep keys and values of earlier tokens.
            compile_model: with ``torch.compile``, for sizes that change; compiled here, as far as a single prompt goes.
            quantize: linear layers to int8, whose answers differ a little.
            backend: of ``torch.compile``.

        Raises:
            GenerationError: the model cannot be compiled here, or not quantised.
        """
        model = quantized(self._model) if quantize else self._model
        self._use_cache = enable_kv_cache
        self._generator.model = model
        if not compile_model:
            return
        self._generator.model = torch.compile(model, dynamic=True, backend=backend)
        try:
            self.infer("", max_new_tokens=min(3, model.config.max_seq_len - 1))
        except (torch._dynamo.exc.TorchDynamoException, RuntimeError) as error:
            self._generator.model = model
            reason = " ".join(str(error).split())[:200]
            raise GenerationError(
                f"compile_model is True and torch.compile fails here ({reason}); inductor on a CPU needs a C++ "
                "compiler. Set compile_model to False"
            ) from None

    def infer(self, prompt: str, **kwargs: Any) -> str:
        """Return a prompt and its continuation.

        Raises:
            GenerationError: a value is not allowed, or the prompt is too long.
        """
        return self.batch_infer([prompt], **kwargs)[0]

    def batch_infer(self, prompts: Sequence[str], **kwargs: Any) -> list[str]:
        """Return prompts and their continuations, computed together; errors as in :meth:`infer`."""
        return self._generator.batch_generate(prompts, self._config(kwargs))

    def benchmark(self, prompts: Sequence[str], num_runs: int = 10, **kwargs: Any) -> dict[str, Any]:
        """Measure how long continuing each prompt takes, one at a time, after one run that does not count.

        Args:
            prompts: at least one.
            num_runs: over all prompts.
            kwargs: fields of ``GenerationConfig``.

        Returns:
            ``median_latency_s`` and ``p99_latency_s`` of a prompt; ``tokens_per_second``, generated; and the samples,
            ``latencies_s``, run by run, with ``new_tokens`` of each.

        Raises:
            GenerationError: there is no prompt or no run, or as in :meth:`infer`.
        """
        if isinstance(prompts, str) or not prompts:
            raise GenerationError(f"prompts is {prompts!r}; expected a list of at least one prompt")
        if type(num_runs) is not int or num_runs < 1:
            raise GenerationError(f"num_runs is {num_runs!r}; it must be at least 1")
        config = self._config(kwargs)
        latencies: list[float] = []
        new_tokens: list[int] = []
        for run in range(num_runs + 1):
            for prompt in prompts:
                start = time.perf_counter()
                added = self._generator.continue_prompts([prompt], config)[0][1]  # on the host: the device has finished
                if run:
                    latencies.append(time.perf_counter() - start)
                    new_tokens.append(len(added))
        return {
            "num_runs": num_runs,
            "num_prompts": len(prompts),
            "median_latency_s": float(np.median(latencies)),
            "p99_latency_s": float(np.percentile(latencies, 99)),
            "tokens_per_second": sum(new_tokens) / sum(latencies),
            "latencies_s": latencies,
            "new_tokens": new_tokens,
        }

    def _config(self, options: dict[str, Any]) -> GenerationConfig:
        """Return the configuration of keyword arguments."""
        if "max_length" not in options and "max_new_tokens" not in options:
            options = {**options, "max_length": min(100, self._model.config.max_seq_len)}
        return GenerationConfig(**{"use_cache": self._use_cache, **options})

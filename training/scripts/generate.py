"""Let a trained model write.

python scripts/generate.py --model_path output --prompts "def main(" "import " --max_length 60 --top_p 0.9
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from checkout import run, say


def parser() -> argparse.ArgumentParser:
    """Return the script's arguments."""
    parser = argparse.ArgumentParser(description="Let a trained model write.")
    parser.add_argument("--model_path", required=True, help="folder that training wrote")
    parser.add_argument("--prompts", nargs="+", default=[], help="beginnings, one text each")
    parser.add_argument("--max_length", type=int, default=100, help="tokens of prompt and continuation")
    parser.add_argument("--temperature", type=float, default=1.0, help="of sampling; 0 takes the likeliest token")
    parser.add_argument("--top_k", type=int, help="sample from that many of the likeliest tokens; default: all")
    parser.add_argument(
        "--top_p", type=float, help="sample from the likeliest tokens of that probability; default: all"
    )
    parser.add_argument("--interactive", action="store_true", help="read prompts from the keyboard, after --prompts")
    parser.add_argument("--seed", type=int, help="of the sampling; default: another one each time")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Print a text for every prompt."""
    arguments = parser().parse_args(argv)
    from llm_trainer.exceptions import ModelConfigurationError
    from llm_trainer.models import TransformerLM
    from llm_trainer.tokenizer import BPETokenizer
    from llm_trainer.training.utils import get_device
    from llm_trainer.utils.generation import GenerationConfig, TextGenerator

    if not arguments.prompts and not arguments.interactive:
        raise ModelConfigurationError("there is no prompt; give --prompts or --interactive")
    chosen = {name: getattr(arguments, name) for name in ("top_k", "top_p") if getattr(arguments, name) is not None}
    is_sampling = arguments.temperature > 0.0
    if is_sampling:
        chosen["temperature"] = arguments.temperature
    config = GenerationConfig(max_length=arguments.max_length, do_sample=is_sampling, seed=arguments.seed, **chosen)
    device = get_device()
    model = TransformerLM.from_pretrained(arguments.model_path).to(device)
    generator = TextGenerator(model, BPETokenizer.from_pretrained(arguments.model_path), device)
    for prompt in arguments.prompts:
        say(generator.generate(prompt, config))
    if arguments.interactive:
        generator.interactive_generate(config)


if __name__ == "__main__":
    sys.exit(run(main))

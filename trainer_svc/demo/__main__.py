"""Make the demo model: ``python -m trainer_svc.demo --out DIR --seed N``.

Writes a Hugging Face directory that ``AutoModelForCausalLM`` and ``AutoTokenizer`` load. Its ``READY`` file is written
last: a directory without it is incomplete and is made anew.
"""

import argparse
import json
import os
import shutil
import sys
from pathlib import Path

READY = "READY"


def main(argv: list[str] | None = None) -> int:
    """0 when the directory is complete, 1 when the warm start failed, 2 on a usage error."""
    parser = argparse.ArgumentParser(prog="python -m trainer_svc.demo", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory to write")
    parser.add_argument("--seed", type=int, default=0, help="seed of initial weights and demonstrations")
    parser.add_argument("--threads", type=int, default=0, help="torch threads; 0 takes OMP_NUM_THREADS, else 1")
    parser.add_argument("--force", action="store_true", help="make it again even when it is complete")
    options = parser.parse_args(argv)
    if (options.out / READY).exists() and not options.force:
        _say(f"{options.out} is complete; nothing to do (--force makes it again)")
        return 0
    return _make(options.out, options.seed, options.threads or int(os.environ.get("OMP_NUM_THREADS", "1")))


def _make(out: Path, seed: int, threads: int) -> int:
    _say("loading torch")
    import torch

    from trainer_svc.demo.model import build_model
    from trainer_svc.demo.tokenizer import build_tokenizer
    from trainer_svc.demo.warm_start import WarmStartFailed, WarmStartSettings, warm_start

    torch.set_num_threads(threads)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer, seed)
    _say(f"{sum(parameter.numel() for parameter in model.parameters()):,} parameters, vocabulary {len(tokenizer)}")
    try:
        reached = warm_start(model, tokenizer, seed, _say, WarmStartSettings())
    except WarmStartFailed as failure:
        _say(f"failed: {failure}")
        return 1
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    shutil.rmtree(out, ignore_errors=True)
    partial.mkdir(parents=True)
    model.save_pretrained(partial)
    tokenizer.save_pretrained(partial)
    (partial / READY).write_text(json.dumps({"seed": seed, **reached}, indent=1) + "\n")
    partial.rename(out)
    _say(f"wrote {out} after {reached['seconds']:.0f} s of warm start")
    return 0


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201 -- the command line is the user interface


if __name__ == "__main__":
    raise SystemExit(main())

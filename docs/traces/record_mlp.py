"""Record the traces of docs/replay.md: a small MLP on two data-parallel ranks of this machine's CPU, one step.

python docs/traces/record_mlp.py docs/traces      # needs torch
"""

from __future__ import annotations

import gzip
import json
import os
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

RANKS, LAYERS, WIDTH, BATCH, BUCKET_MIB = 2, 6, 512, 256, 1
WARM_UP = 4


def train(rank: int, meeting: str, folder: str) -> None:
    """Train a few steps and write the trace of the last one."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    layers = [layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=BUCKET_MIB)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    samples = torch.randn(BATCH, WIDTH)
    path = Path(folder) / f"mlp-rank-{rank}.json"
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=WARM_UP, warmup=1, active=1, repeat=1),
        on_trace_ready=lambda traced: traced.export_chrome_trace(str(path)),
        record_shapes=True,
    ) as profiler:
        for _ in range(WARM_UP + 2):
            optimizer.zero_grad()
            model(samples).square().mean().backward()
            optimizer.step()
            profiler.step()
    dist.barrier()
    dist.destroy_process_group()
    trace = json.loads(path.read_text())
    for name in ("traceName", "host_name"):
        trace.pop(name, None)
    for event in trace["traceEvents"]:
        event.get("args", {}).pop("Ev Idx", None)
    path.unlink()
    packed = gzip.compress(json.dumps(trace, separators=(",", ":")).encode(), mtime=0)
    path.with_suffix(".json.gz").write_bytes(packed)


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as place:
        mp.spawn(train, args=(f"{place}/meeting", sys.argv[1]), nprocs=RANKS)

"""One rank of a tiny data-parallel job on gloo that records its own trace: ``python ddp_job.py RANK FOLDER``."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

RANKS, STEPS = 2, 4
SLOW_RANK, SLEEP_S = 1, 0.03


def main(rank: int, folder: Path) -> None:
    import torch
    from torch import distributed, nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.profiler import ProfilerActivity, profile, record_function, schedule

    torch.set_num_threads(1)
    store = distributed.FileStore(str(folder / "store"), RANKS)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
    torch.manual_seed(0)
    layers: list[Any] = [nn.Linear(256, 256) for _ in range(4)]
    model = DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch = torch.randn(64, 256)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=2, active=STEPS - 2, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(folder / f"rank-{rank}.json")),
        record_shapes=True,
    ) as profiler:
        for step in range(STEPS):
            if rank == SLOW_RANK:
                with record_function("late"):
                    time.sleep(SLEEP_S)
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == STEPS - 1:
                distributed.barrier()
                time.sleep(0.2)  # gloo's threads record the end of their work before the profiler stops
            profiler.step()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))

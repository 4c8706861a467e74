"""AdamW step, one loop iteration per tensor."""

from functools import partial

from microbench.call import optimizer_call

RARE = True

build = partial(optimizer_call, form="looped")

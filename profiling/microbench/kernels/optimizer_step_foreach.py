"""AdamW step with one kernel per operation over the whole list (torch's foreach)."""

from functools import partial

from microbench.call import optimizer_call

RARE = True

build = partial(optimizer_call, form="foreach")

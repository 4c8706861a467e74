"""AdamW step in one fused kernel over the whole list."""

from functools import partial

from microbench.call import optimizer_call

build = partial(optimizer_call, form="fused")

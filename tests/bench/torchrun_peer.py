"""Runs torchrun of torch 1.13 under Python 3.11, with a correct Std.from_str. Iterating over an enum leaves out its members 0
and 3 there. The original therefore fails at once without --redirects, and takes --tee 3 for nothing."""

from torch.distributed import run
from torch.distributed.elastic.multiprocessing import Std


def from_str(cls, text):
    if ":" not in text:
        return cls(int(text))
    return {int(rank): cls(int(streams)) for rank, streams in (one.split(":") for one in text.split(","))}


Std.from_str = classmethod(from_str)
run.main()

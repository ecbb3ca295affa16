"""torchrun of torch 1.13, which fails at once under Python 3.11 when --redirects is not given: its default is no dict."""

import torch.distributed.elastic.multiprocessing as multiprocessing
from torch.distributed import run

plain = multiprocessing.Std.from_str.__func__
multiprocessing.Std.from_str = classmethod(lambda cls, text: plain(cls, text) or {})
run.main()

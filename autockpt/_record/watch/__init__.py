"""Watching a step: what runs in it is put down as markers on the tape of an allocator, and nothing of it is changed.

    a step that runs ── observer.py ──▶ markers among events ──▶ SeenStep, of which `_record` makes a profile

observer.py     calls, functions, operators and saves, as markers
routing.py      standing around forwards, torch functions and operators
marks.py        what the markers stand for, and all that was seen of a run
attributes.py   what stands at attributes of modules as a call begins
checks.py       what objects tell of a call: generators, containers, buffers, attributes
copies.py       checksums of what calls are given, where ranks may have it alike
returned.py     who returned which tensor
on_ctx.py       tensors that a Function keeps on its context
gathered.py     units of FSDP2, whose parameters come and go
graphs.py       the graphs that forwards make, and the backwards that come to them
passes.py       which backward pass reads a saved tensor
stamps.py       stamps at the places that a forward passes, where only seconds are wanted
storage_tape.py allocations and frees where tensors have no memory
static.py       parameters and buffers, which stand before a step
"""

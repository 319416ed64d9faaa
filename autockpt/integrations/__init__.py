"""A budget where a training framework is configured: callbacks that call `apply` at the right moment.

    transformers.py   a callback for the Trainer, and for those of TRL
    lightning.py      a callback for Lightning
    held.py           what both do: apply, figures for the logger, remove

Each imports its framework, so none is imported here. They use the public names of autockpt, and nothing else of it.
"""

"""Where the bytes of tensors lie that wait.

memory.py        which memory: pinned as long as enough is left to others, then pageable
arenas.py        a space of bytes in a few rows of memory
free_list.py     which bytes of a space are free
pieces.py        a tensor's own elements as a row of bytes, without what lies between them
"""

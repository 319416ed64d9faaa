"""Below one level: a segment whose replay goes in parts (Griewank and Walther 2000), or leaves calls inside to others.

`Segment.cuts` has a level for each call: where it is not 0 a part begins, and the lowest levels are the outermost. A
part goes in parts again where there are cuts inside it.

    cuts        0  2  0  1  0  0  1  0       three parts: calls 0 to 2, 3 to 5, 6 and 7; the first goes in two again
    descent     ├──────────────────▶         when backward comes to the segment: runs all parts but the last, saves
                │        │        │          nothing, and keeps what the parts are given
    replays                       ├────▶     then each part by itself, when backward comes to it: the last one first
                         ├───────▶
                ├──────▶                     and the first by a descent of its own
                      ├▶
                ├────▶

A frame (`_frames`) that has descended hands its slots on: each part is a frame like any other, over the same slots, its
boundary what the descent kept. So what holds of replays and of lifetimes holds of parts too (see `_frames`). What comes
before a part is what was there in forward: states of generators are kept where parts begin.

`Segment.inner` has segments inside the calls. As the frame is replayed, what they run joins frames again, as it did in
forward, and these take over the slots that the replay comes to. They hold what they were given, see generators and
modules as they are in that replay, and are replayed when backward comes to them, in parts where they have cuts.

    block       ├ norm ┤├ attention ┤ + ├ norm ┤├ mlp ┤ +       inner: attention
    replay      ├─────────────────────────────────────▶         fills all slots but those of attention
    backward of                         ··············
    replay of attention  ├──────────▶

A frame is replayed at once instead, which is as exact and holds more: while more calls may join it, in a backward that
keeps its graph, and where such a replay fails, as where a call takes a gradient in its own forward.

parts.py    the replayer around another one: has a frame go in parts
descent.py  all parts but the last, for what they give one another
inside.py   a replay in which calls inside join frames again
"""

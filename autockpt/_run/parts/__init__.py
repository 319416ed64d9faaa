"""Below one level: a segment's replay goes in parts (Griewank and Walther 2000), or has replays of inner segments.

`Segment.cuts` has a level for each call. If the level is not 0, a part begins there. The lowest levels are the
outermost parts. A part that has cuts inside goes in parts again.

    cuts        0  2  0  1  0  0  1  0       three parts: calls 0 to 2, 3 to 5, 6 and 7; the first goes in two again
    descent     ├──────────────────▶         when backward comes to the segment: runs all parts but the last, saves
                │        │        │          nothing, and keeps what parts give to later ones
    replays                       ├────▶     then each part by itself, when backward comes to it: the last one first
                         ├───────▶
                ├──────▶                     and the first by a descent of its own
                      ├▶
                ├────▶

After a descent the frame (`frames`) hands its slots on. Each part is a frame like any other, over the same slots. Its
boundary is what the descent kept. So the rules for replays and lifetimes also hold for parts (see `frames`). A part
begins with generators as they were in forward: their states are kept where parts begin.

`Segment.inner` has segments inside the calls. When the frame is replayed, calls of these segments join new frames, as
calls do in forward. These frames take over the slots that the replay reaches. They hold what they were given, and see
generators and modules as they are in that replay. They are replayed when backward comes to them: in parts if they have
cuts.

    block       ├ norm ┤├ attention ┤ + ├ norm ┤├ mlp ┤ +       inner: attention
    replay      ├─────────────────────────────────────▶         fills all slots but those of attention
    backward of                         ··············
    replay of attention  ├──────────▶

A frame is replayed at once instead while more calls may join it, in a backward that keeps its graph, and if its nested
replay fails. It fails, for example, if a call takes a gradient in its own forward. A replay at once is as exact, and
holds more memory.

parts.py    a replayer around another one, which has frames go in parts
descent.py  runs all parts but the last, for what they give to later ones
inside.py   a replay in which calls of inner segments join new frames
"""

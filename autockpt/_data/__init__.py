"""What is written down: profiles, plans, goals and errors, and the files that hold them.

Numbers come in, immutable documents go out. Nothing here imports another room; `document.py` loads `_show` by name.
Open `profile.py` first, then `plan.py`.
"""

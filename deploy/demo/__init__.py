"""`make demo`: a story of commands that a reader can type, each shown before it runs.

In: a checkout with its `.venv`. Out: what each command printed, and whether it did what the story says of it. All of it
happens in a temporary directory with processes of its own; at the end, both are gone. Only tests import this package.

`story` says what a chapter is, `chapters` holds their commands, `player` runs them, `processes` starts and ends them.
"""

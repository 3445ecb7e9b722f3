"""The HTTP listener: a process of its own, which dies with the daemon that started it.

In: requests, and over one socket from the daemon its answers and the events that are watched, encoded once.
Out: answers, streams of events, and a bounded number of questions to the daemon.
Guaranteed: no client costs the daemon more than the pace of its questions; connections, watchers and what waits for
them are bounded; every other state stays in the daemon. Imports nothing of the daemon, so that it starts quickly.
"""

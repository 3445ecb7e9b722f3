"""The HTTP listener: a process of its own, which ends with the daemon that started it.

In: requests; from the daemon, over one socket, replies and the watched events, encoded once.
Out: responses, streams of events, and a bounded number of queries to the daemon.
Guaranteed: clients cost the daemon at most the bounded rate of queries; connections, watchers and their buffers are
bounded; all other state stays in the daemon. Imports no stage of the daemon, so that it starts quickly.
"""

"""Started by the daemon, with this package's directory and the descriptors of the link and the listening sockets."""

import sys

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    from astha.listener.process import main

    main(*map(int, sys.argv[2:]))

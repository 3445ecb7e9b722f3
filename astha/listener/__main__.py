"""Started by the daemon with the folder that holds this package, and the descriptors of link and listening sockets."""

import sys

if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    from astha.listener.process import main

    main(*map(int, sys.argv[2:]))

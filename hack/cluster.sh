#!/bin/sh
# A ring of Cairn's daemons on this machine; --help has the rest.
exec /usr/bin/python3 "$(dirname "$0")/cluster/main.py" "$@"

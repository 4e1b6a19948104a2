"""A mote serve of the bundled model, for tests by other people's clients."""
import re
import subprocess
import sys


def serve(program, *options):
    """The process and the server's address."""
    process = subprocess.Popen([program, "serve", "--port", "0", "--parallel", "2", *options], stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        found = re.search(r"http://\S+", line)
        if found:
            return process, found.group()
    sys.exit("no server")

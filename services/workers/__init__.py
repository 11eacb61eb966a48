"""Several processes behind one port: the parent, and the workers that it starts, watches and replaces."""

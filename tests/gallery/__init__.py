"""The gallery of staged faults: what `keelmq status` says about each of them, and which command it gives."""

"""keelmq status and keelmq top: the state of a running cluster in a terminal."""

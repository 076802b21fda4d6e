"""What the console decides without a network or a clock: history, changes, sessions, differences."""

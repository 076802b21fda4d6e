"""What the console shows of topics, groups, messages and users. Services over AdminClient; they change
nothing."""

"""The subcommands of mqadmin, by subject; importing a module registers its commands."""

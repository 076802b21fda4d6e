"""The subcommands of mqadmin, by what they are asked of; importing a module registers its commands."""

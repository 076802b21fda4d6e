"""keelmq verify: replicas of a group, or the files of a stopped broker."""

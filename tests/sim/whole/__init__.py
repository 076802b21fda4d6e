"""Whole groups: the programs as they ship, on virtual time, networks and disks."""

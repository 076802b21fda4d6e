"""Machines without Kubernetes: `keelmq init`, and the units and files that it writes."""

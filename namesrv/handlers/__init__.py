"""The operations of a name server bound to its tables: one class per part, each with bind(table)."""

"""What programs import that use KeelMQ without being part of it."""

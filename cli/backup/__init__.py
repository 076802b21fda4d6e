"""keelmq backup and keelmq restore: controllers and stores."""

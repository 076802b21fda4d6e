"""One Operation value per request code, header models beside it."""

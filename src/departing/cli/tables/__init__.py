"""Terminal tables and JSON values, one module per command family."""

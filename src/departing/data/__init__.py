"""From the outside world to histories: event logs in files, databases, frames and warehouses."""
